package xla_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// kept is the result of a program with all special features, and the files with compiled programs afterwards.
type kept struct {
	sums        []float32
	memory      xla.Memory
	collectives int
	files       []string
}

// keep opens two devices with a cache folder, and runs a program with a collective, a donated input and a kernel.
func keep(t *testing.T, cache string, options ...xla.Option) (got kept) {
	t.Helper()
	files := func() []string {
		found, _ := filepath.Glob(filepath.Join(cache, "executables", "*"))
		return found
	}
	before := files()
	options = append(options, xla.Devices(2), xla.Plugin(devicetest.One().Info().Plugin), xla.CacheDir(cache))
	backend := must.Get(xla.Open(options...))(t)
	defer backend.Close()
	if after := files(); !slices.Equal(after, before) {
		t.Errorf("opening a backend left %q: canaries are to be compiled each time", after)
	}
	mesh := must.Get(backend.Mesh(xla.Axis("data", 2)))(t)
	sharded := xla.Shard(0, "data")
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		y := affine(x, graph.Const(x.Graph(), []float32{2, 1}))[0]
		return collective.AllReduce(y, collective.Sum, "data")
	}, xla.In(sharded).Gives(sharded).Donates(0)))(t)
	defer p.Close()
	out := must.Get(p.Call(counting(4 * testkernel.Part)))(t)
	got.sums = tensors.MustCopyFlatData[float32](whole(t, out...)[0])
	got.memory, got.collectives, got.files = must.Get(p.Memory())(t), len(must.Get(p.Collectives())(t)), files()
	return got
}

// A program that was compiled before is loaded, and equals the compiled one in every property. A damaged one is
// compiled again, and so is every program with CompileAfresh.
func TestExecutablesAreKept(t *testing.T) {
	cache := t.TempDir()
	same := func(when string, got, want kept) {
		t.Helper()
		if !slices.Equal(got.sums, want.sums) || got.memory != want.memory || got.collectives != want.collectives {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	afresh := keep(t, cache, xla.CompileAfresh())
	if len(afresh.files) != 0 || afresh.collectives != 1 || afresh.memory.Aliased == 0 {
		t.Fatalf("compiled afresh: %+v", afresh)
	}
	compiled := keep(t, cache)
	same("compiled", compiled, afresh)
	if len(compiled.files) != 1 {
		t.Fatalf("files %q, want one for the program", compiled.files)
	}
	// A program that is compiled again replaces the file.
	file := compiled.files[0]
	stat := func() os.FileInfo {
		open := must.Get(os.Open(file))(t)
		t.Cleanup(func() { open.Close() })
		return must.Get(open.Stat())(t)
	}
	before := stat()
	same("loaded", keep(t, cache), afresh)
	if !os.SameFile(stat(), before) {
		t.Error("it was compiled again")
	}
	whole := must.Get(os.ReadFile(file))(t)
	for name, damaged := range map[string][]byte{
		"cut short": whole[:len(whole)/2],
		"empty":     nil,
		"one bit":   append(slices.Clone(whole[:len(whole)-1]), whole[len(whole)-1]^1),
	} {
		must.Do(t, os.WriteFile(file, damaged, 0o600))
		before := stat()
		same(name, keep(t, cache), afresh)
		if os.SameFile(stat(), before) {
			t.Errorf("%s: it was loaded", name)
		}
	}
}

// If XLA does not load a cached program that is undamaged, it is not tried again, and everything is compiled.
func TestExecutablesThatDoNotLoad(t *testing.T) {
	cache := t.TempDir()
	compiled := keep(t, cache)
	nonsense := []byte("no executable")
	sum := sha256.Sum256(nonsense)
	must.Do(t, os.WriteFile(compiled.files[0], append(sum[:], nonsense...), 0o600))
	for range 2 {
		got := keep(t, cache)
		if !slices.Equal(got.sums, compiled.sums) || len(got.files) != 2 ||
			!strings.Contains(got.files[1], "refused-") {
			t.Errorf("%+v", got)
		}
	}
}
