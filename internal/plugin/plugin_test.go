package plugin

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// elsewhere hides the machine's own plugins from Find, and returns a folder in
// which go-xla would look.
func elsewhere(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("PJRT_PLUGIN_LIBRARY_PATH", dir)
	t.Setenv("HOME", t.TempDir())
	return dir
}

func touch(t *testing.T, path string) string {
	t.Helper()
	must.Do(t, os.WriteFile(path, nil, 0o644))
	return path
}

func TestFindOrder(t *testing.T) {
	goxla, root := elsewhere(t), t.TempDir()
	if _, err := Find("cpu", root); !errors.Is(err, ErrNotFound) {
		t.Fatalf("nothing is there: error %v", err)
	}
	all := verified(root)
	if len(all) == 0 {
		systest.Skip(t, systest.System, "no plugin is pinned for this system")
	}
	part := all[0].part
	part.Install = func(_ context.Context, dir string, _ cache.Progress) error {
		return os.WriteFile(filepath.Join(dir, installedName), nil, 0o644)
	}
	dir := must.Get(part.Ensure(t.Context(), nil))(t)
	cached := filepath.Join(dir, installedName)
	if p, err := Find("cpu", root); err != nil || p.Path != cached {
		t.Errorf("with one in the cache: %+v, %v", p, err)
	}
	touch(t, filepath.Join(goxla, "pjrt_c_api_cpu_v0.90.0_plugin.so"))
	newer := touch(t, filepath.Join(goxla, "pjrt_c_api_cpu_v0.114.0_plugin.so"))
	if p, err := Find("", root); err != nil || p.Path != newer || p.Platform != CPU {
		t.Errorf("with two of go-xla's: %+v, %v; want %s", p, err, newer)
	}
	cuda := touch(t, filepath.Join(goxla, "pjrt_c_api_cuda_plugin.so"))
	if p, err := Find("cuda", root); err != nil || p.Path != cuda || p.Platform != CUDA {
		t.Errorf("asked for CUDA: %+v, %v", p, err)
	}
	mine := touch(t, filepath.Join(t.TempDir(), "my_plugin.so"))
	if p, err := Find(mine, root); err != nil || p.Path != mine {
		t.Errorf("an explicit path: %+v, %v", p, err)
	}
}

func TestHalfInstalledIsNotFound(t *testing.T) {
	elsewhere(t)
	root := t.TempDir()
	for _, s := range slices.Concat(verified(root), unverified(root)) {
		dir := filepath.Join(root, partName, s.part.Version+"-123")
		must.Do(t, os.MkdirAll(dir, 0o755))
		touch(t, filepath.Join(dir, installedName))
	}
	if p, err := Find("cpu", root); !errors.Is(err, ErrNotFound) {
		t.Errorf("a plugin whose installation was cut off was found: %+v, %v", p, err)
	}
}

func TestPathsThatGoXLAMisreads(t *testing.T) {
	for _, folder := range []string{"com,ma", "nvidia"} {
		dir := filepath.Join(t.TempDir(), folder)
		must.Do(t, os.MkdirAll(dir, 0o755))
		path := touch(t, filepath.Join(dir, "pjrt_c_api_cpu_plugin.so"))
		if _, err := Find(path, t.TempDir()); err == nil || !strings.Contains(err.Error(), "move or link") {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

func TestGPUsHonoursVisibleDevices(t *testing.T) {
	for _, none := range []string{"", "-1", "-1,0"} {
		t.Setenv("CUDA_VISIBLE_DEVICES", none)
		if n := GPUs(); n != 0 {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %d GPUs", none, n)
		}
	}
}

// TestPipWhereThereIsNone hides pip from the Python on the PATH, as Debian's has none.
func TestPipWhereThereIsNone(t *testing.T) {
	real := must.Get(exec.LookPath("python3"))(t)
	without := func(modules string) string {
		dir := t.TempDir()
		script := "#!/bin/sh\ncase \"$*\" in\n" + modules + ") exit 1 ;;\nesac\nexec " + real + " \"$@\"\n"
		must.Do(t, os.WriteFile(filepath.Join(dir, "python3"), []byte(script), 0o755))
		return dir
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", without(`*"import pip"*`)+":/usr/bin:/bin")
	environment := filepath.Join(t.TempDir(), "pip")
	if python, err := pipPython(t.Context(), environment); err != nil {
		t.Errorf("a Python without pip: %q, %v", python, err)
	} else {
		t.Setenv("PATH", path)
		if !imports(t.Context(), python, "pip") {
			t.Errorf("%s has no pip", python)
		}
	}
	t.Setenv("PATH", without(`*"import pip"*|*venv*`))
	_, err := pipPython(t.Context(), environment)
	if !errors.Is(err, errNoPip) || !strings.Contains(err.Error(), "python3-venv") {
		t.Errorf("a Python without pip and venv: %v", err)
	}
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "a.whl")
	must.Do(t, os.WriteFile(archive, zipped(t, "pkg/plugin.so", "library"), 0o644))
	to := filepath.Join(dir, "out.so")
	must.Do(t, unpack(archive, "pkg/plugin.so", to))
	if text, _ := os.ReadFile(to); string(text) != "library" {
		t.Errorf("unpacked %q", text)
	}
	if err := unpack(archive, "pkg/other.so", filepath.Join(dir, "b")); err == nil {
		t.Error("a member that is not there: no error")
	}
}

// library compiles a C file to a shared library.
func library(t *testing.T, source string) Plugin {
	t.Helper()
	dir := t.TempDir()
	c, so := filepath.Join(dir, "a.c"), filepath.Join(dir, "pjrt_c_api_cpu_plugin.so")
	must.Do(t, os.WriteFile(c, []byte(source), 0o644))
	if output, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
	return Plugin{Path: so, Platform: CPU}
}

// apiOf is a library that says it speaks a version of the PJRT API and has no
// function behind it: calling one would crash.
func apiOf(version string) string {
	return `#include <stddef.h>
static struct { size_t size; void *ext; size_t vsize; void *vext; int major, minor;
} api = {48, 0, 24, 0, ` + version + `};
void *GetPjrtApi(void) { return &api; }`
}

func TestLoadRefuses(t *testing.T) {
	whole := library(t, apiOf("0, 115"))
	bytes := must.Get(os.ReadFile(whole.Path))(t)
	cut := Plugin{Path: filepath.Join(t.TempDir(), "cpu_cut.so")}
	must.Do(t, os.WriteFile(cut.Path, bytes[:len(bytes)/3], 0o644))
	empty := Plugin{Path: touch(t, filepath.Join(t.TempDir(), "cpu_empty.so"))}
	for _, test := range []struct {
		name   string
		plugin Plugin
		want   string
	}{
		{"an old API", library(t, apiOf("0, 40")), "speaks PJRT API 0.40, need 0.81 or newer"},
		{"another major version", library(t, apiOf("1, 90")), "speaks PJRT API 1.90"},
		{"another kind of library", library(t, "int answer = 42;"), "not a PJRT plugin"},
		{"no table", library(t, "void *GetPjrtApi(void) { return 0; }"), "returned NULL"},
		{"a missing dependency", library(t, "extern int nowhere(void); void *GetPjrtApi(void) { return 0; }"+
			" int (*p)(void) = nowhere;"), "nowhere"},
		{"cut short", cut, "cpu_cut.so"},
		{"empty", empty, "cpu_empty.so"},
		{"gone", Plugin{Path: "/no/such.so"}, "/no/such.so"},
	} {
		v, err := Load(test.plugin)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: version %v, error %v; want one that says %q", test.name, v, err, test.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is not one sentence: %v", test.name, err)
		}
	}
	if v, err := Load(whole); err != nil || v.String() != "0.115" {
		t.Errorf("a right version: %v, %v", v, err)
	}
}

func TestSetFlags(t *testing.T) {
	const ynn, excess = "--xla_cpu_experimental_ynn_fusion_type=", "--xla_allow_excess_precision=false"
	const dump, still = "--xla_dump_to=/tmp/x", "as the last plugin left them"
	dir := t.TempDir()
	library := func(name, text string) Plugin {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		return Plugin{Path: filepath.Join(dir, name), Platform: CPU}
	}
	knows := library("knows.so", strings.Repeat("x", 1<<20-10)+flags[0].name+strings.Repeat("y", 100)+flags[1].name)
	cuda, knowsOne, knowsNone := knows, library("one.so", flags[1].name), library("old.so", "")
	cuda.Platform = CUDA
	pinned := knowsNone
	pinned.knowsFlags = true
	for _, test := range []struct {
		plugin        Plugin
		before, after string
	}{
		{knows, "", ynn + " " + excess},
		{knows, dump, dump + " " + ynn + " " + excess},
		{knowsNone, still, dump},
		{pinned, still, dump + " " + ynn + " " + excess},
		{knows, ynn + "LIBRARY_FUSION_TYPE_DOT", ynn + "LIBRARY_FUSION_TYPE_DOT " + excess},
		{knows, "--xla_allow_excess_precision", "--xla_allow_excess_precision " + ynn},
		{cuda, "", excess},
		{cuda, dump, dump + " " + excess},
		{knowsOne, "", excess},
		{knowsNone, "", ""},
	} {
		if test.before != still {
			t.Setenv("XLA_FLAGS", test.before)
			setByUs = nil
		}
		must.Do(t, setFlags(test.plugin))
		if got := os.Getenv("XLA_FLAGS"); got != test.after {
			t.Errorf("%+v with %q: %q, want %q", test.plugin, test.before, got, test.after)
		}
	}
}

// TestPinnedKnowTheFlags checks what setFlags takes for granted of the pinned plugins that are installed: an unknown
// flag would end every process that opens one.
func TestPinnedKnowTheFlags(t *testing.T) {
	root := must.Get(cache.Dir(""))(t)
	must.Get(Ensure(t.Context(), string(CPU), root, nil))(t)
	for _, s := range slices.Concat(verified(root), unverified(root)) {
		dir, ok := s.part.Installed()
		if !ok || !s.knowsFlags {
			continue
		}
		for _, f := range flags {
			if known, err := contains(filepath.Join(dir, installedName), f.name); err != nil || !known {
				t.Errorf("%s does not know %s (error %v)", s.title, f, err)
			}
		}
	}
}

// TestHeader holds that PJRT's header is that of the go-xla which is compiled in.
func TestHeader(t *testing.T) {
	folder := must.Get(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/gomlx/go-xla").Output())(t)
	theirs := must.Get(os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "pjrt", "pjrt_c_api.h")))(t)
	if ours, err := os.ReadFile("pjrt_c_api.h"); err != nil || !bytes.Equal(ours, theirs) {
		t.Errorf("pjrt_c_api.h is not go-xla's (error %v): copy it", err)
	}
}
