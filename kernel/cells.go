package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/command"
)

// Cells are built with the tag "resident": their devices are in a process beside the notebook's kernel
// (kernel/resident). So they need no cgo, no XLA and none of its protocol buffers, which is most of what their programs
// would link.

// goXLA is the module's path.
const goXLA = "github.com/gomlx/go-xla"

// cellModule makes a copy of go-xla's module for cells: of what writes programs, with the stand-ins in place of what
// calls XLA. It also fills gopls's cache with what cells import.
func (k *Kernel) cellModule(tools cache.Part) (cache.Part, error) {
	main, err := os.ReadFile(filepath.Join(k.Root, "go.mod"))
	if err != nil {
		return cache.Part{}, err
	}
	pjrt, pjrtErr := k.sources("kernel/goxla/pjrt")
	installer, installerErr := k.sources("kernel/goxla/installer")
	return cache.Part{
		Root: k.Cache, Name: "cells", Bytes: 200e6,
		Version: fingerprint(moduleLine(string(main), goXLA), tools.Version, pjrt, installer),
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			report(0, 2, "preparing go-xla for cells")
			where := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", goXLA)
			where.Dir, where.Env = k.Root, append(os.Environ(), ownGo...)
			from, err := where.Output()
			if err != nil {
				return fmt.Errorf("finding %s: %w", goXLA, err)
			}
			// It requires nothing: in a workspace the project's go.mod says which versions are used.
			mod := fmt.Sprintf("module %s\n\ngo %s\n", goXLA, goLine(k.Root))
			if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644); err != nil {
				return err
			}
			standIns := os.DirFS(filepath.Join(k.Root, "kernel", "goxla"))
			if err := copyForCells(os.DirFS(strings.TrimSpace(string(from))), standIns, dir); err != nil {
				return err
			}
			report(1, 2, "type-checking Go packages")
			programs, _ := tools.Installed()
			warmUp := command.Command{Name: filepath.Join(programs, completionDir, "gopls"),
				Args: []string{"warm-up", k.Root, dir}, Env: []string{"GOWORK=", cellFlags}}
			_ = warmUp.Run(ctx) // without it the first completion takes longer
			return ctx.Err()
		},
	}, errors.Join(pjrtErr, installerErr)
}

// copyForCells copies what cells need of go-xla's module, and the packages that stand in for others of it.
func copyForCells(from, standIns fs.FS, to string) error {
	return errors.Join(
		copyFiles(from, "compute/xla", to, "*.go"),
		copyFiles(from, "stablehlo", to, "*.go"),
		copyFiles(from, "types", to, "*.go", "*/*.go"),
		copyFiles(from, "internal", to, "utils/*.go", "optypes/*.go", "shapeinference/*.go"),
		copyFiles(standIns, ".", to, "*/*.go"),
	)
}

// copyFiles copies the files of a folder that match patterns, except tests.
func copyFiles(from fs.FS, folder, to string, patterns ...string) error {
	for _, pattern := range patterns {
		names, err := fs.Glob(from, path.Join(folder, pattern))
		if err != nil || len(names) == 0 {
			return errors.Join(err, fmt.Errorf("go-xla has no %s/%s", folder, pattern))
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := fs.ReadFile(from, name)
			if err != nil {
				return err
			}
			target := filepath.Join(to, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(target, text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// residentDir is the folder of the program with the processes beside kernels, which is this checkout's own.
func (k *Kernel) residentDir() string { return filepath.Join(k.Cache, "resident", fingerprint(k.Root)) }

// buildCells compiles what cells link, and the program with the processes beside kernels. Nothing is compiled if
// nothing has changed.
func (k *Kernel) buildCells(ctx context.Context, report cache.Progress) error {
	built := 0
	onLine := func(pkg string) {
		built++
		report(0, 0, fmt.Sprintf("compiling Go packages: %d, %s", built, pkg))
	}
	main := command.Command{Name: "go", Args: []string{"build", "-v", "-o",
		filepath.Join(k.residentDir(), "shardbook-resident"), "./kernel/resident"}, Dir: k.Root, Env: ownGo, OnLine: onLine}
	if err := main.Run(ctx); err != nil {
		return err
	}
	tool := filepath.Join(k.residentDir(), "go", "go")
	if err := os.MkdirAll(filepath.Dir(tool), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("../shardbook-resident", tool); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	parts, err := k.parts()
	if err != nil {
		return err
	}
	module, ok := parts[3].Installed()
	if !ok {
		return errors.New("the module for cells is not installed: run `shardbook setup`")
	}
	text := fmt.Sprintf("go %s\n\nuse (\n\t%q\n\t%q\n)\n", goLine(k.Root), k.Root, module)
	if err := os.WriteFile(k.workspace(), []byte(text), 0o644); err != nil {
		return err
	}
	cells := command.Command{Name: "go", Args: []string{"build", "-v", "./lib/..."}, Dir: k.Root, Env: k.CellEnv(),
		OnLine: onLine}
	return cells.Run(ctx)
}

// CellEnv returns the environment of go commands that build packages as cells are built.
func (k *Kernel) CellEnv() []string {
	return []string{"GOWORK=" + k.workspace(), cellFlags, "GOPROXY=off"}
}

// workspace is the file of the workspace in which cells are built, but for their own module.
func (k *Kernel) workspace() string { return filepath.Join(k.residentDir(), "go.work") }

// The environment of kernels (kernel/resident reads it): the folder of the module that replaces go-xla, and that cells
// have their devices in their own processes, with nothing beside the kernel.
const (
	envModules = "SHARDBOOK_CELL_MODULES"
	InProcess  = "SHARDBOOK_IN_PROCESS=1"
)

// cellFlags has the build tags of cells. The last two keep cgo out of the standard library.
const cellFlags = "GOFLAGS=-buildvcs=false -tags=resident,netgo,osusergo"

// goLine returns the version in the project's go.mod.
func goLine(root string) string {
	text, _ := os.ReadFile(filepath.Join(root, "go.mod"))
	for line := range strings.Lines(string(text)) {
		if version, ok := strings.CutPrefix(line, "go "); ok {
			return strings.TrimSpace(version)
		}
	}
	return "1.26"
}
