// Package examples tests the programs in its folders.
package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"golang.org/x/mod/modfile"

	"github.com/shardbook/shardbook/internal/cudatest"
	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/native"
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

// TestCUDA: on a processor that stands for a GPU, the kernels of the example compute what it prints without them.
func TestCUDA(t *testing.T) {
	if !cudatest.Alone(t) {
		return
	}
	source := strings.Split(read(t, "cuda/main.go"), "`")[1]
	must.Get(cudatest.Load(t.TempDir(), source, "swiglu", "swiglu_gradient"))(t)
	type f32 = []float32
	launch := native.Launch{Grid: "up(n[0], 2)", Block: "2"}
	kernels := must.Get(native.CompileCUDA(source, native.Global[func(y, nothing, a, b f32)]("swiglu", launch),
		native.Global[func(da, db, a, b, dy f32)]("swiglu_gradient", launch)))(t)
	array := func(values ...float32) testkernel.Array {
		a, free, err := testkernel.Guarded(true, dtypes.Float32, len(values))
		must.Do(t, err)
		t.Cleanup(free)
		a.Set(values)
		return a
	}
	a, b, ones, nothing := array(-2, 0, 3), array(1, 2, 3), array(1, 1, 1), array()
	y, da, db := array(0, 0, 0), array(0, 0, 0), array(0, 0, 0)
	for name, c := range map[string][2][]testkernel.Array{
		"swiglu":          {{a, b}, {y, nothing}},
		"swiglu_gradient": {{a, b, ones}, {da, db}},
	} {
		if wrong := testkernel.Call(must.Get(kernels.Handler(name))(t), c[0], c[1]); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	got := fmt.Sprintf("swiglu: %.4f\ngradients: %.4f %.4f\n", y.Values(), da.Values(), db.Values())
	if want := read(t, "cuda/output.txt"); got != want {
		t.Errorf("the kernels give\n%s\noutput.txt says\n%s", got, want)
	}
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
