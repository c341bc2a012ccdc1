package kernel

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
)

// stopDelay is how long JupyterLab and headless runs have to stop their kernels.
const stopDelay = 10 * time.Second

// Environ returns the process's environment for commands that use the kernel: JupyterLab's Python and GoNB's tools
// first on the PATH, and the kernelspec on Jupyter's path. It returns an error if Setup has not run.
func (k *Kernel) Environ() ([]string, error) { return k.environ(true) }

// environ is Environ, with gopls or without it.
func (k *Kernel) environ(completion bool) ([]string, error) {
	parts, err := k.parts()
	if err != nil {
		return nil, err
	}
	dirs := make([]string, len(parts))
	for i, part := range parts {
		var ok bool
		if dirs[i], ok = part.Installed(); !ok {
			return nil, fmt.Errorf("%s is not installed in %s: run `shardbook setup`", part.Name, part.Root)
		}
	}
	python, tools, cells := dirs[0], dirs[1], dirs[3]
	gopls := filepath.Join(tools, completionDir)
	// JupyterLab's terminals have it on the PATH already.
	path := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { return dir == gopls })
	if completion {
		path = slices.Insert(path, 0, gopls)
	}
	path = slices.Insert(path, 0, filepath.Join(python, "bin"), tools, k.residentDir())
	set := map[string]string{
		"PATH":                    joinPath(path...),
		"JUPYTER_PATH":            joinPath(filepath.Join(k.Root, "kernel", "jupyter"), os.Getenv("JUPYTER_PATH")),
		"JUPYTER_PREFER_ENV_PATH": "1", // the private environment wins over what the user has in the home folder
		"PYTHONNOUSERSITE":        "1",
		"VIRTUAL_ENV":             python,
		"PYTHONPATH":              "",
		"PYTHONHOME":              "",
		"GOWORK":                  "",
		cache.EnvDir:              k.Cache,
		envModules:                cells,
	}
	if p := os.Getenv(plugin.Env); strings.ContainsRune(p, filepath.Separator) {
		abs, err := filepath.Abs(p) // a cell runs in another folder
		if err != nil {
			return nil, err
		}
		set[plugin.Env] = abs
	}
	// Programs differ in how they read a duplicate variable, so the old entries are removed.
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := set[name]
		return replaced
	})
	for name, value := range set {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}

// Command returns a command with the kernel's environment; its name is looked up on the kernel's PATH. When ctx ends,
// the command is interrupted, and killed if it has not ended some seconds later.
func (k *Kernel) Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	env, err := k.Environ()
	if err != nil {
		return nil, err
	}
	return commandIn(ctx, env, name, args...)
}

// commandIn is Command with a given environment.
func commandIn(ctx context.Context, env []string, name string, args ...string) (*exec.Cmd, error) {
	path, err := lookPath(name, env)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Args[0] = name
	cmd.Env = env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopDelay
	return cmd, nil
}

// lookPath is exec.LookPath on the PATH of env.
func lookPath(name string, env []string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		return exec.LookPath(name)
	}
	for _, entry := range env {
		path, ok := strings.CutPrefix(entry, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

func joinPath(elements ...string) string {
	elements = slices.DeleteFunc(elements, func(s string) bool { return s == "" })
	return strings.Join(elements, string(filepath.ListSeparator))
}
