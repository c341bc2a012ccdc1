// Package examples tests the programs in its folders.
package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
)

// page is the limit of an example's lines.
const page = 60

// Like all tests, the examples have XLA optimize less: they inherit the environment.
func TestMain(m *testing.M) { devicetest.Main(m) }

// command runs a command in a folder outside the repository, with no network for Go, and returns its output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "SHARDBOOK_PLUGIN=cpu")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, said.String(), out)
	}
	return string(out)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// importer writes a module of only the examples, which imports the libraries as a user's module does.
func importer(t *testing.T, examples []string) (dir string) {
	t.Helper()
	root := must.Get(filepath.Abs(".."))(t)
	dir = t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	ours := must.Get(modfile.Parse("go.mod", []byte(read(t, filepath.Join(root, "go.mod"))), nil))(t)
	module := ours.Module.Mod.Path
	write("go.mod", fmt.Sprintf("module example.com/importer\n\ngo %s\n\nrequire %s v0.0.0\n\nreplace %[2]s => %q\n",
		ours.Go.Version, module, root))
	write("go.sum", read(t, filepath.Join(root, "go.sum"))) // there is no module proxy
	for _, name := range examples {
		write(filepath.Join(name, "main.go"), read(t, filepath.Join(name, "main.go")))
	}
	return dir
}

// TestExamples builds and vets the examples in a separate module, runs each in an empty folder, and compares its output
// with output.txt.
func TestExamples(t *testing.T) {
	sources, err := filepath.Glob("*/main.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var names []string
	for _, source := range sources {
		names = append(names, filepath.Dir(source))
	}
	dir, programs := importer(t, names), t.TempDir()
	command(t, dir, "go", "vet", "./...")
	// Without debug information the linker takes half the time.
	command(t, dir, "go", "build", "-ldflags=-w", "-o", programs, "./...")
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			got := command(t, t.TempDir(), filepath.Join(programs, name))
			want := read(t, filepath.Join(name, "output.txt"))
			if got != want {
				t.Errorf("it prints\n%s\noutput.txt says\n%s", got, want)
			}
			if lines := strings.Count(read(t, filepath.Join(name, "main.go")), "\n"); lines >= page {
				t.Errorf("main.go has %d lines, want fewer than %d", lines, page)
			}
		})
	}
}
