package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/command"
)

// toolsBytes and modulesBytes are the spaces that the tools and Go's caches need.
const (
	toolsBytes   = 300e6
	modulesBytes = 1500e6
)

// completionDir is the subfolder of the tools' folder for code completion (gopls).
const completionDir = "completion"

// tools are the programs that GoNB's cells need: GoNB in the version of go.mod, and goimports and gopls in the versions
// of tools/go.mod (a module of its own, because gopls needs another golang.org/x/tools than GoMLX). gopls has its own
// folder because only JupyterLab's kernels use it. What they find there is kernel/completion, which starts it.
func (k *Kernel) tools() (cache.Part, error) {
	goVersion, err := k.goVersion(context.Background())
	if err != nil {
		return cache.Part{}, err
	}
	sums, err := os.ReadFile(filepath.Join(k.Root, "tools", "go.sum"))
	if err != nil {
		return cache.Part{}, err
	}
	main, err := os.ReadFile(filepath.Join(k.Root, "go.mod"))
	if err != nil {
		return cache.Part{}, err
	}
	completion, err := k.sources("kernel/completion")
	if err != nil {
		return cache.Part{}, err
	}
	return cache.Part{
		Root: k.Cache,
		Name: "tools",
		Version: fingerprint(string(sums), moduleLine(string(main), "github.com/janpfeifer/gonb"), goVersion,
			completionDir, completion),
		Bytes: toolsBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			tools := []struct{ path, module, pkg string }{
				{"gonb", ".", "github.com/janpfeifer/gonb"},
				{"goimports", "tools", "golang.org/x/tools/cmd/goimports"},
				{filepath.Join(completionDir, "real", "gopls"), "tools", "golang.org/x/tools/gopls"},
				{filepath.Join(completionDir, "gopls"), ".", modulePath + "/kernel/completion"},
			}
			for i, tool := range tools {
				report(i, len(tools), "building "+filepath.Base(tool.path))
				path := filepath.Join(dir, tool.path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				build := command.Command{Name: "go", Args: []string{"build", "-o", path, tool.pkg},
					Dir: filepath.Join(k.Root, tool.module), Env: ownGo}
				if err := build.Run(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

// modules fills Go's module cache with everything that a cell may import, since cells run with GOPROXY=off. `go build`
// alone would miss modules. The part's folder is in the module cache, so clearing that also removes the part.
func (k *Kernel) modules() (cache.Part, error) {
	sums, err := os.ReadFile(filepath.Join(k.Root, "go.sum"))
	if err != nil {
		return cache.Part{}, err
	}
	where := exec.Command("go", "env", "GOMODCACHE", "GOCACHE", "GOVERSION")
	where.Dir = k.Root
	said, err := where.Output()
	if err != nil {
		return cache.Part{}, goMissing(err)
	}
	modCache, _, _ := strings.Cut(string(said), "\n")
	return cache.Part{
		Root:    filepath.Join(modCache, "cache", "shardbook"),
		Name:    "modules",
		Version: fingerprint(string(sums), string(said)),
		Bytes:   modulesBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			report(0, 1, "downloading Go modules")
			// It uses a copy of go.mod and go.sum, because `download all` writes sums into go.sum, and set-up must not
			// change the project.
			for _, name := range []string{"go.mod", "go.sum"} {
				text, err := os.ReadFile(filepath.Join(k.Root, name))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
					return err
				}
			}
			download := command.Command{Name: "go", Dir: k.Root, Env: ownGo,
				Args: []string{"mod", "download", "-modfile=" + filepath.Join(dir, "go.mod"), "all"}}
			return download.Run(ctx)
		},
	}, nil
}

// ownGo makes set-up's go commands build this checkout, whatever workspace or flags the user has.
var ownGo = []string{"GOWORK=off", "GOFLAGS=-buildvcs=false"}

// sources returns the Go files of a folder, without tests, as one text.
func (k *Kernel) sources(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(k.Root, folder, "*.go"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	return all.String(), nil
}

// goVersion returns the version of Go that the project is built with.
func (k *Kernel) goVersion(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = k.Root // go.mod may ask for another than the one on the PATH
	output, err := cmd.Output()
	if err != nil {
		return "", goMissing(err)
	}
	return strings.TrimSpace(string(output)), nil
}

func goMissing(err error) error {
	return fmt.Errorf("the go command does not run (%w): install Go 1.26 or newer from https://go.dev/dl and put it "+
		"on the PATH", err)
}

// moduleLine returns the line of go.mod that requires the module.
func moduleLine(mod, module string) string {
	for line := range strings.Lines(mod) {
		if strings.Contains(line, module+" v") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// fingerprint is a short hash of the texts: a part's version.
func fingerprint(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintln(h, len(text))
		io.WriteString(h, text)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}
