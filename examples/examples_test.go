// Package examples tests the programs in its folders.
package examples

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// The examples compile with less effort than they do for users, like all tests: they inherit the environment.
func TestMain(m *testing.M) { devicetest.Main(m) }

// command runs a command in a folder that is not the repository's, with no network for Go, and returns what it prints.
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

// importer makes a module of its own, of nothing but the examples, which imports the libraries as somebody else's does.
func importer(t *testing.T, examples []string) (dir string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ours, err := modfile.Parse("go.mod", []byte(read(filepath.Join(root, "go.mod"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	module := ours.Module.Mod.Path
	write("go.mod", fmt.Sprintf("module example.com/importer\n\ngo %s\n\nrequire %s v0.0.0\n\nreplace %[2]s => %q\n", ours.Go.Version, module, root))
	write("go.sum", read(filepath.Join(root, "go.sum"))) // what a module proxy would be asked
	for _, name := range examples {
		write(filepath.Join(name, "main.go"), read(filepath.Join(name, "main.go")))
	}
	return dir
}

// promised is what an example's package comment says that it prints.
func promised(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	_, output, ok := strings.Cut(file.Doc.Text(), "\nOutput:\n\n")
	if !ok {
		t.Fatalf("%s: the package comment does not end with \"Output:\", an empty line, and what the program prints", path)
	}
	return strings.TrimPrefix(strings.ReplaceAll(output, "\n\t", "\n"), "\t")
}

// TestExamples builds and vets the examples in a module of their own, runs each in an empty folder, and compares what it
// prints with its package comment.
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
	command(t, dir, "go", "build", "-ldflags=-w", "-o", programs, "./...") // debug information takes half of the linker's time
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			got, want := command(t, t.TempDir(), filepath.Join(programs, name)), promised(t, filepath.Join(name, "main.go"))
			if got != want {
				t.Errorf("it prints\n%s\nits comment says\n%s", got, want)
			}
		})
	}
}
