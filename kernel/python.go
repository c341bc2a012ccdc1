package kernel

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/kernel/labextension"
	"github.com/shardbook/shardbook/lib/chart"
)

// requirements pins JupyterLab and everything below it, with hashes, for every
// system and every Python from 3.10. It is made from requirements.in by
//
//	uv pip compile --universal --python-version 3.10 --generate-hashes --no-annotate requirements.in -o requirements.txt
//
//go:embed requirements.txt
var requirements string

//go:embed template/index.html.j2
var templateIndex string

//go:embed template/conf.json
var templateConf string

// serverConfig is JupyterLab's configuration. It fetches nothing from the network,
// and it takes the answer to its first question to a kernel as a sign of life:
// with Jupyter's own list of messages that do not count, GoNB, which unlike
// others says nothing unasked, is "unknown" until a cell has run.
//
//go:embed jupyter_server_config.json
var serverConfig string

// pageConfig keeps JupyterLab from asking a newcomer whether it may fetch news.
const pageConfig = `{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}
`

// pythonBytes is the space that the environment needs while pip fills it.
const pythonBytes = 600e6

// minPython is the oldest Python that the pinned packages run on.
const minPython = "3.10"

// python is a private environment with JupyterLab, our lab extension (which puts
// ECharts on the page) and our export template.
func (k *Kernel) python() (cache.Part, error) {
	interpreter, version, err := findPython(context.Background())
	return cache.Part{
		Root:    k.Cache,
		Name:    "python",
		Version: fingerprint(requirements, templateIndex, templateConf, serverConfig, pageConfig, chart.Loader(), labextension.Contents(), interpreter, version),
		Bytes:   pythonBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return installPython(ctx, interpreter, dir, report)
		},
	}, err
}

// probePython prints, a line each: the path of the interpreter itself (inside a
// virtual environment, of the one that it was made of), its version, whether that
// is new enough, and whether it can make environments.
const probePython = `import os, sys
print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
print("%d.%d.%d" % sys.version_info[:3])
print(sys.version_info >= (3, 10))
try:
    import venv, ensurepip
    print("venv")
except ImportError:
    print("none")
`

// findPython returns the path and version of a Python that can make environments.
func findPython(ctx context.Context) (path, version string, err error) {
	err = errors.New("no python3 on the PATH: install Python " + minPython + " or newer (Debian, Ubuntu: apt-get install python3 python3-venv)")
	for _, name := range []string{"python3", "python"} {
		found, lookErr := exec.LookPath(name)
		if lookErr != nil {
			continue
		}
		output, runErr := exec.CommandContext(ctx, found, "-I", "-c", probePython).Output()
		said := strings.Split(strings.TrimSpace(string(output)), "\n")
		switch {
		case runErr != nil || len(said) != 4:
			err = fmt.Errorf("%s does not run as Python 3 (%v): install Python %s or newer", found, runErr, minPython)
		case said[2] != "True":
			err = fmt.Errorf("%s is Python %s, need %s or newer: install one and put it on the PATH", found, said[1], minPython)
		case said[3] != "venv":
			err = fmt.Errorf("%s (Python %s) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)", found, said[1])
		default:
			return said[0], said[1], nil
		}
	}
	return "", "", err
}

func installPython(ctx context.Context, interpreter, dir string, report cache.Progress) error {
	total := strings.Count(requirements, "==")
	report(0, total, "making a Python environment")
	if err := (command{name: interpreter, args: []string{"-I", "-m", "venv", dir}}).run(ctx); err != nil {
		return err
	}
	pins := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(pins, []byte(requirements), 0o644); err != nil {
		return err
	}
	collected := 0
	onLine := func(line string) {
		if name, ok := strings.CutPrefix(line, "Collecting "); ok {
			collected++
			name, _, _ = strings.Cut(name, "==")
			report(collected, total, "downloading "+name)
		} else if strings.HasPrefix(line, "Installing collected packages") {
			report(collected, total, "unpacking the packages")
		}
	}
	// Isolated, and without the user's wishes for other places: whatever Python
	// finds elsewhere, pip would take for installed.
	err := command{
		name: filepath.Join(dir, "bin", "python"),
		args: []string{"-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off",
			"--require-hashes", "-r", pins},
		env:    []string{"PIP_USER=0", "PIP_TARGET=", "PIP_PREFIX=", "PIP_ROOT=", "PIP_REQUIRE_VIRTUALENV="},
		onLine: onLine,
		advice: "check the network and pip's settings",
	}.run(ctx)
	if err != nil {
		return err
	}
	share := filepath.Join(dir, "share", "jupyter")
	if err := labextension.Install(share); err != nil {
		return err
	}
	return writeFiles(dir, map[string]string{
		"share/jupyter/nbconvert/templates/shardbook/index.html.j2":  templateIndex,
		"share/jupyter/nbconvert/templates/shardbook/conf.json":      templateConf,
		"share/jupyter/nbconvert/templates/shardbook/loader.html.j2": "{% raw %}" + chart.Loader() + "{% endraw %}\n",
		"etc/jupyter/jupyter_server_config.json":                     serverConfig,
		"etc/jupyter/labconfig/page_config.json":                     pageConfig,
	})
}

func writeFiles(dir string, files map[string]string) error {
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
