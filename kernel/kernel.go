// Package kernel installs and runs the JupyterLab kernel that shardbook's notebooks need: GoNB, its tools, a private
// Python environment with JupyterLab, the PJRT plugin, and Go's module and build caches filled for working offline.
//
// Everything lies in the user's cache folder and is installed once. The kernelspec is committed
// (jupyter/kernels/shardbook) and finds the module it stands in by itself, so that a notebook needs no set-up cell.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// Name is the kernel's name, as notebooks' metadata has it.
const Name = "shardbook"

// modulePath is what the project's go.mod says first.
const modulePath = "github.com/shardbook/shardbook"

// EnvRoot names the environment variable with the project's folder, for a shardbook command that is started elsewhere.
const EnvRoot = "SHARDBOOK_ROOT"

// Kernel is the kernel of one checkout of the project. It is made by New, which installs nothing.
type Kernel struct {
	Root  string // the project's folder
	Cache string // the cache folder

	parts func() ([]cache.Part, error) // what Setup installs besides the plugin
}

// New returns the kernel of the project that the folder dir lies in. cacheDir may be empty for the default.
func New(dir, cacheDir string) (*Kernel, error) {
	root, err := findRoot(dir)
	if err != nil {
		return nil, err
	}
	cacheDir, err = cache.Dir(cacheDir)
	if err != nil {
		return nil, err
	}
	k := &Kernel{Root: root, Cache: cacheDir}
	k.parts = sync.OnceValues(func() ([]cache.Part, error) { // asks python and go, which takes a moment
		python, pythonErr := k.python()
		tools, toolsErr := k.tools()
		modules, modulesErr := k.modules()
		return []cache.Part{python, tools, modules}, errors.Join(pythonErr, toolsErr, modulesErr)
	})
	return k, nil
}

// findRoot walks up from dir to the project's go.mod, or takes $SHARDBOOK_ROOT.
func findRoot(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := start; ; at = filepath.Dir(at) {
		if isRoot(at) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	if root := os.Getenv(EnvRoot); root != "" {
		if isRoot(root) {
			return filepath.Abs(root)
		}
		return "", fmt.Errorf("%s=%q holds no go.mod of %s: set it to a clone of the project", EnvRoot, root,
			modulePath)
	}
	return "", fmt.Errorf("%q lies in no clone of %s: change into one, or set %s to it", start, modulePath, EnvRoot)
}

func isRoot(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module "+modulePath+"\n")
}

// notebooks is the folder that JupyterLab opens.
func (k *Kernel) notebooks() string { return filepath.Join(k.Root, "notebooks") }

// Report is told how far the set-up has come: the part it is at, inside that part
// done of total steps (0 when unknown), and what is being done.
type Report func(part string, done, total int, what string)

// Setup installs what is missing. It may be called by several processes at once, and again after it was cut off.
func (k *Kernel) Setup(ctx context.Context, report Report) error {
	if report == nil {
		report = func(string, int, int, string) {}
	}
	parts, err := k.parts()
	if err != nil {
		return err
	}
	if _, err := plugin.Ensure(ctx, os.Getenv(plugin.Env), k.Cache, reportAs(report, "PJRT plugin")); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := part.Ensure(ctx, reportAs(report, part.Name)); err != nil {
			return err
		}
	}
	return nil
}

func reportAs(report Report, part string) cache.Progress {
	return func(done, total int, what string) { report(part, done, total, what) }
}
