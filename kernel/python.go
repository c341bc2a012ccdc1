package kernel

import (
	"bufio"
	"bytes"
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
		Name:    "python",
		Version: fingerprint(requirements, templateIndex, templateConf, shellLine, serverConfig, pageConfig, chart.Loader(), interpreter, version),
		Bytes:   pythonBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return installPython(ctx, interpreter, dir, report)
		},
	}, err
}

// findPython returns the path and version of a Python that can make environments.
func findPython(ctx context.Context) (path, version string, err error) {
	const probe = "import sys\nprint('%d.%d.%d' % sys.version_info[:3], sys.version_info >= (3, 10))\ntry:\n import venv, ensurepip\n print('venv')\nexcept ImportError: print('none')"
	err = errors.New("no python3 on the PATH: install Python " + minPython + " or newer (Debian, Ubuntu: apt-get install python3 python3-venv)")
	for _, name := range []string{"python3", "python"} {
		found, lookErr := exec.LookPath(name)
		if lookErr != nil {
			continue
		}
		output, runErr := exec.CommandContext(ctx, found, "-c", probe).Output()
		fields := strings.Fields(string(output))
		switch {
		case runErr != nil || len(fields) != 3:
			err = fmt.Errorf("%s does not run (%v): install Python %s or newer", found, runErr, minPython)
		case fields[1] != "True":
			err = fmt.Errorf("%s is Python %s, need %s or newer: install one and put it on the PATH", found, fields[0], minPython)
		case fields[2] != "venv":
			err = fmt.Errorf("%s (Python %s) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)", found, fields[0])
		default:
			return found, fields[0], nil
		}
	}
	return "", "", err
}

func installPython(ctx context.Context, interpreter, dir string, report cache.Progress) error {
	total := strings.Count(requirements, "==")
	report(0, total, "making a Python environment")
	if err := run(ctx, nil, interpreter, "-m", "venv", dir); err != nil {
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
	err := run(ctx, onLine, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--no-input",
		"--disable-pip-version-check", "--progress-bar=off", "--require-hashes", "-r", pins)
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
		"etc/shardbook/shell-line.sh":                                shellLine, // see Headless
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

// run runs a command, handing each line that it prints to onLine (which may be
// nil). The error of a command that fails ends with what it printed last.
func run(ctx context.Context, onLine func(string), name string, args ...string) error {
	return runIn(ctx, "", nil, onLine, name, args...)
}

// runIn is run in a folder, with variables added to the environment.
func runIn(ctx context.Context, dir string, env []string, onLine func(string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var tail [][]byte
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if onLine != nil {
			onLine(lines.Text())
		}
		if tail = append(tail, bytes.Clone(lines.Bytes())); len(tail) > 5 {
			tail = tail[1:]
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, bytes.TrimSpace(bytes.Join(tail, []byte("\n"))))
	}
	return nil
}
