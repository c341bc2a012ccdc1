package kernel

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/pyenv"
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

// serverConfig is JupyterLab's configuration. It disables network access. It also makes the first reply of a kernel a
// sign of life: with Jupyter's defaults GoNB, which sends nothing by itself, would be "unknown" until a cell has run.
//
//go:embed jupyter_server_config.json
var serverConfig string

// pageConfig disables JupyterLab's question about news.
const pageConfig = `{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}
`

// settingsOverrides has JupyterLab wait longer than a second for completions, since the first one starts gopls.
const settingsOverrides = `{"@jupyterlab/completer-extension:manager": {"providerTimeout": 4000}}
`

// pythonBytes is the space that the environment needs while pip fills it.
const pythonBytes = 600e6

// minPython is the oldest Python that the pinned packages run on.
const minPython = "3.10"

// python is a private environment with JupyterLab, our lab extension (which puts
// ECharts on the page) and our export template.
func (k *Kernel) python() (cache.Part, error) {
	interpreter, version, err := pyenv.Find(context.Background(), minPython)
	return cache.Part{
		Root: k.Cache,
		Name: "python",
		Version: fingerprint(requirements, templateIndex, templateConf, serverConfig, pageConfig, settingsOverrides,
			chart.Loader(), labextension.Contents(), interpreter, version),
		Bytes: pythonBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return installPython(ctx, interpreter, dir, report)
		},
	}, err
}

func installPython(ctx context.Context, interpreter, dir string, report cache.Progress) error {
	if err := pyenv.Install(ctx, interpreter, dir, requirements, report); err != nil {
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
		"etc/jupyter/labconfig/default_setting_overrides.json":       settingsOverrides,
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
