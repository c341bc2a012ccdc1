// Package house tests the repository itself: that its documents and its rules are true.
package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/chart"
)

const module = "github.com/shardbook/shardbook/"

// root is the repository's folder, seen from this package.
const root = "../.."

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(root, name)))(t)
	return string(text)
}

// parsed is a Go file with its comments.
func parsed(t *testing.T, name string) *ast.File {
	t.Helper()
	const mode = parser.ParseComments | parser.SkipObjectResolution
	file := must.Get(parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, mode))(t)
	return file
}

// linesOf yields the place and the text of each line of the files.
func linesOf(t *testing.T, files []string) iter.Seq2[string, string] {
	return func(yield func(at, line string) bool) {
		for _, name := range files {
			for i, line := range strings.Split(read(t, name), "\n") {
				if !yield(fmt.Sprintf("%s:%d", name, i+1), line) {
					return
				}
			}
		}
	}
}

func TestFormatted(t *testing.T) {
	if files := output(t, "gofmt", "-l", "."); files != "" {
		t.Errorf("gofmt would change:\n%s", files)
	}
}

// TestVet vets the code as it is built without tags, and as it is built for MPI.
func TestVet(t *testing.T) {
	systest.FullOnly(t, "go vet and staticcheck")
	output(t, "go", "vet", "./...")
	output(t, "go", "tool", "staticcheck", "./...")
	systest.OpenMPI(t)
	output(t, "go", "vet", "-tags", "mpi", "./...")
	output(t, "go", "tool", "staticcheck", "-tags", "mpi", "./...")
}

// TestSkips checks that tests are skipped only through systest, which records the reason, and that none looks for a GPU
// by itself.
func TestSkips(t *testing.T) {
	bare := regexp.MustCompile(`\b[tb]\.Skip(f|Now)?\(|testing\.Short\(|` +
		`devicetest\.Plugin\(\) [!=]=`)
	for at, line := range linesOf(t, tracked(t, ":(glob)**/*.go", ":(exclude)internal/systest",
		":(exclude)internal/house/house_test.go")) {
		if bare.MatchString(line) {
			t.Errorf("%s: %s: use systest.Skip, systest.FullOnly or devicetest.GPU", at, strings.TrimSpace(line))
		}
	}
}

// room is one row of ARCHITECTURE.md's table: a package and the rooms it may import.
var room = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| [^|]+ \\| ([^|]+) \\|$")

var quoted = regexp.MustCompile("`([a-z/]+)`")

// TestImports compares ARCHITECTURE.md's table with the imports between packages, and with the list of packages.
func TestImports(t *testing.T) {
	allowed := map[string][]string{}
	for _, row := range room.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		allowed[row[1]] = []string{}
		for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
			allowed[row[1]] = append(allowed[row[1]], name[1])
		}
	}
	const format = `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`
	for line := range strings.Lines(output(t, "go", "list", "-f", format, "./...")) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		var ours []string
		for _, imported := range fields[1:] {
			if short, ok := strings.CutPrefix(imported, module); ok {
				ours = append(ours, short)
			}
		}
		rooms, ok := allowed[name]
		delete(allowed, name)
		slices.Sort(ours)
		slices.Sort(rooms)
		if !ok {
			t.Errorf("%s is not in ARCHITECTURE.md's table", name)
		} else if !slices.Equal(ours, rooms) {
			t.Errorf("%s imports %q, ARCHITECTURE.md says %q", name, ours, rooms)
		}
	}
	for name := range allowed {
		t.Errorf("ARCHITECTURE.md has a room %s, which does not exist", name)
	}
}

// TestLean checks that packages without charts do not link lib/chart, which makes programs several times larger.
func TestLean(t *testing.T) {
	for _, name := range []string{"lib/collective/plan", "lib/collective/group", "lib/collective/mpi", "lib/train"} {
		for _, linked := range strings.Fields(output(t, "go", "list", "-deps", "./"+name)) {
			if linked == module+"lib/chart" {
				t.Errorf("%s links %s: draw in a package beside it, as lib/collective/plan/draw", name, linked)
			}
		}
	}
}

// cellProgram is a program like a notebook's cell.
const cellProgram = `package main

import (
	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/notebook"
)

func main() {
	live := chart.NewLive()
	for step := range notebook.Progress("steps", notebook.Param("steps", 3)) {
		notebook.Check(notebook.Keep("step", step))
		notebook.Check(live.Show(chart.Line("line", "x", "y", chart.Series{Y: []float64{0, float64(step)}})))
	}
	notebook.Check(live.Close())
	chart.Show(chart.Table("table", []string{"a"}, nil))
}
`

// TestCellLinks checks that a cell does not link what draws charts, net/http, and a second backend: linking takes most
// of a cell's time.
func TestCellLinks(t *testing.T) {
	source, program := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "cell")
	must.Do(t, os.WriteFile(source, []byte(cellProgram), 0o644))
	for name, large := range map[string][]string{
		source:      {"dop251/goja", "sbinet/gg", "golang/freetype", "golang.org/x/image", "net/http"},
		"./lib/ddp": {"gobackend"},
	} {
		for _, linked := range strings.Fields(output(t, "go", "list", "-deps", "-tags", "resident", name)) {
			if slices.ContainsFunc(large, func(part string) bool { return strings.Contains(linked, part) }) {
				t.Errorf("a cell with %s links %s", name, linked)
			}
		}
	}
	output(t, "go", "build", "-tags", "resident", "-ldflags=-w", "-o", program, source)
	if bytes.Contains(must.Get(os.ReadFile(program))(t), []byte(chart.ECharts()[:1000])) {
		t.Error("a cell has the source of ECharts")
	}
}

// blockOf returns the README's first block of code in a language.
func blockOf(t *testing.T, language string) string {
	t.Helper()
	code, _ := document{"README.md", read(t, "README.md")}.blocks()
	for _, b := range code {
		if b.language == language {
			return strings.Join(b.lines, "\n") + "\n"
		}
	}
	t.Fatalf("README.md has no block of code in %s", language)
	return ""
}

// TestReadmeProgram runs the README's program and compares its output.
func TestReadmeProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "main.go")
	must.Do(t, os.WriteFile(path, []byte(blockOf(t, "go")), 0o644))
	if got, want := output(t, "go", "run", path), blockOf(t, "text"); got != want {
		t.Errorf("the README's program prints\n%s\nthe README says\n%s", got, want)
	}
}

// tracked lists the existing files that match the patterns and that git tracks or does not ignore.
func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		systest.Skip(t, systest.System, "not a git checkout: cannot list the files of the project")
	}
	return slices.DeleteFunc(strings.Fields(output(t, "git", append([]string{"ls-files", "--cached", "--others",
		"--exclude-standard"}, patterns...)...)), func(file string) bool {
		_, err := os.Stat(filepath.Join(root, file))
		return err != nil
	})
}

// TestNoForeignPaths checks that no file has a home folder of somebody's machine.
func TestNoForeignPaths(t *testing.T) {
	foreign := regexp.MustCompile(`(/home/|/root/|/Users/)[a-z]`)
	files := tracked(t, ":(exclude)docker", ":(exclude)binder") // which have the home folder of a container
	for at, line := range linesOf(t, files) {
		if foreign.MatchString(line) {
			t.Errorf("%s: %.160s", at, foreign.FindString(line))
		}
	}
}
