// Package labextension installs a JupyterLab extension that loads ECharts, which makes charts interactive, and that
// delays cells until a starting session is ready.
//
// JupyterLab serves the extension itself, so it needs no other server and no notebook cell. It is too small to need a
// build.
package labextension

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/lib/chart"
)

//go:embed package.json install.json static
var files embed.FS

// Contents returns all that Install writes as one text, which identifies the version.
func Contents() string {
	var all strings.Builder
	_ = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			data, _ := files.ReadFile(name) // embedded files can always be read
			all.WriteString(name)
			all.Write(data)
		}
		return err
	})
	return all.String() + chart.ECharts()
}

// Install writes the extension into a Jupyter data folder (share/jupyter in a virtual environment) in place of an
// earlier installation. JupyterLab uses it when its page is next loaded.
//
// It returns an error if a file cannot be written.
func Install(shareJupyterDir string) error {
	target := filepath.Join(shareJupyterDir, "labextensions", "@shardbook", "lab")
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("removing the earlier extension: %w", err)
	}
	err := os.CopyFS(target, files)
	if err == nil {
		err = os.WriteFile(filepath.Join(target, "static", "echarts.min.js"), []byte(chart.ECharts()), 0o644)
	}
	if err != nil {
		return fmt.Errorf("installing the JupyterLab extension: %w", err)
	}
	return nil
}
