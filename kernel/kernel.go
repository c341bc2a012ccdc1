// Package kernel installs and runs the JupyterLab kernel that shardbook's notebooks need: GoNB, its tools, a private
// Python environment with JupyterLab, the PJRT plugin, and Go's module and build caches filled for working offline.
//
// Everything is in the user's cache folder and is installed once. The kernelspec is committed
// (jupyter/kernels/shardbook) and finds its module by itself, so that notebooks need no set-up cell.
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
	"github.com/shardbook/shardbook/internal/plugin"
)

// Name is the kernel's name in the metadata of notebooks.
const Name = "shardbook"

// modulePath is the module path in the project's go.mod.
const modulePath = "github.com/shardbook/shardbook"

// EnvRoot names the environment variable with the project's folder, for commands that start outside it.
const EnvRoot = "SHARDBOOK_ROOT"

// Kernel is the kernel of one checkout of the project; see [New].
type Kernel struct {
	Root  string // the project's folder
	Cache string // the cache folder

	parts func() ([]cache.Part, error) // what Setup installs besides the plugin
}

// New returns the kernel of the project that contains the folder dir. cacheDir defaults to [cache.Dir]. It installs
// nothing.
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
		cells, cellsErr := k.cellModule(tools)
		return []cache.Part{python, tools, modules, cells}, errors.Join(pythonErr, toolsErr, modulesErr, cellsErr)
	})
	return k, nil
}

// findRoot returns $SHARDBOOK_ROOT, or the nearest parent of dir with the project's go.mod.
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
	return "", fmt.Errorf("%q is not in a clone of %s: change into one, or set %s to it", start, modulePath, EnvRoot)
}

func isRoot(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module "+modulePath+"\n")
}

// notebooks is the folder that JupyterLab opens.
func (k *Kernel) notebooks() string { return filepath.Join(k.Root, "notebooks") }

// Report receives the progress of the set-up: the part, the step done of total (0 if unknown), and its description.
type Report func(part string, done, total int, what string)

// Setup installs what is missing. Several processes may call it at once, and again after an interruption.
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
	return k.buildCells(ctx, reportAs(report, "cells"))
}

// SetupCUDA installs the plugin for CUDA and NVIDIA's libraries.
func (k *Kernel) SetupCUDA(ctx context.Context, report Report) error {
	return plugin.InstallCUDA(ctx, k.Cache, reportAs(report, "CUDA"))
}

func reportAs(report Report, part string) cache.Progress {
	return func(done, total int, what string) { report(part, done, total, what) }
}
