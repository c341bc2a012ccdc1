package xla

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
)

// mlpSpace is the profile of two runs of mlp by XLA's profiler for CPUs in jaxlib 0.10.2, which has a profiler besides
// its plugin: with the HLO that this package makes of mlp, and $XLA_FLAGS as package plugin sets it.
func mlpSpace(t testing.TB) []byte {
	space := must.Get(os.ReadFile("../xplane/testdata/mlp.xplane.pb"))(t)
	return space
}

// mlp is the profiled program: x of [64 32], normalized, by w of [32 128], tanh, by v of [128 32], and x again.
func mlp(x, w, v *graph.Node) *graph.Node {
	centred := graph.Sub(x, graph.ReduceAndKeep(x, graph.ReduceMean, -1))
	variance := graph.ReduceAndKeep(graph.Square(centred), graph.ReduceMean, -1)
	norm := graph.Mul(centred, graph.Rsqrt(graph.AddScalar(variance, 1e-5)))
	return graph.Add(x, graph.Dot(graph.Tanh(graph.Dot(norm, w).Product()), v).Product())
}

func opened(t *testing.T) *Backend {
	b := must.Get(Open(Devices(1), Plugin("cpu"), NoKernels()))(t) // as when the profile was recorded
	t.Cleanup(b.Close)
	return b
}

// zeros is a tensor of that shape in Go.
func zeros(rows, columns int) [][]float32 {
	all := make([][]float32, rows)
	for i := range all {
		all[i] = make([]float32, columns)
	}
	return all
}

// A profile's operations are those of the program, with the same names. The recording of XLA's profiler comes from a
// test plugin, so that everything is real but the plugin.
func TestProfileJoinsOperations(t *testing.T) {
	b := opened(t)
	mesh := must.Get(b.Mesh(Axis("data", 1)))(t)
	p := must.Get(Compile(mesh, mlp, In(Replicated()).Gives(Replicated())))(t)
	defer p.Close()
	with := &Backend{Backend: b.Backend, owner: owner{plugin: profilerPlugin(t, mlpSpace(t))}}
	const runs = 2 // as the profile has
	profile := must.Get(with.Profile(func() error {
		for range runs {
			if _, err := p.Call(zeros(64, 32), zeros(32, 128), zeros(128, 32)); err != nil {
				return err
			}
		}
		return nil
	}))(t)
	operations := must.Get(p.Operations())(t)
	var want, got []string
	for _, o := range operations {
		want = append(want, o.Name)
		if o.Runs != 1 {
			t.Errorf("%+v", o)
		}
	}
	times := profile.Operations()
	for i, o := range times {
		got = append(got, o.Name)
		if o.Events != runs || o.Total <= 0 || i > 0 && o.Total > times[i-1].Total {
			t.Errorf("%d: %+v", i, o)
		}
		// The recorded one has a number of its process after its name.
		if name := func(s string) string {
			return s[strings.LastIndex(s, "_mlp"):][:4]
		}; name(o.Module) != name(operations[0].Module) {
			t.Errorf("module %q, the program's is %q", o.Module, operations[0].Module)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("the profile has %q, the program %q", got, want)
	}
}

// profilerPlugin builds a library with a profiler that returns a recording.
func profilerPlugin(t *testing.T, space []byte) plugin.Plugin {
	source := fmt.Sprintf(`#include <stddef.h>
typedef struct { size_t size; void *profiler; char *data; size_t count; } args;
static char data[] = {%s};
static void *create(struct { size_t size; const char *o; size_t n; void *profiler; } *a) {
	a->profiler = data; return 0; }
static void *nothing(void *a) { return 0; }
static void *collect(args *a) { a->data = data; a->count = sizeof data; return 0; }
static struct { size_t size; void *p[9]; } profiler = {
	80, { 0, 0, 0, 0, create, nothing, nothing, nothing, collect } };
static struct { size_t size; int type; void *next, *profiler; } extension = { 32, 1, 0, &profiler };
static struct { size_t size; void *extension; size_t s; void *e; int major, minor; } api = {
	48, &extension, 24, 0, 0, 115 };
void *GetPjrtApi(void) { return &api; }`, strings.Trim(strings.ReplaceAll(fmt.Sprint(space), " ", ","), "[]"))
	dir := t.TempDir()
	c, so := filepath.Join(dir, "a.c"), filepath.Join(dir, "pjrt_c_api_cpu_plugin.so")
	must.Do(t, os.WriteFile(c, []byte(source), 0o644))
	if output, err := exec.Command("gcc", "-w", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
	return plugin.Plugin{Path: so, Platform: plugin.CPU}
}
