package xla

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
)

// mlpSpace is the profile of two runs of mlp by XLA's profiler for CPUs in jaxlib 0.10.2, which has a profiler besides
// its plugin: with the HLO that this package makes of mlp, and $XLA_FLAGS as package plugin sets it.
func mlpSpace(t testing.TB) []byte {
	space := must.Get(os.ReadFile("testdata/mlp.xplane.pb"))(t)
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

// wire writes a field of a message: a string, bytes or an integer.
func wire(number protowire.Number, value any) []byte {
	switch value := value.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(value))
	case string:
		return wire(number, []byte(value))
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value.([]byte))
}

func join(fields ...[]byte) []byte { return bytes.Join(fields, nil) }

// handSpace has a plane of a device and one of the host, tables after what refers to them, an operation's name in the
// event itself, in its kind, and as a reference, and unknown fields.
func handSpace() []byte {
	table := func(field protowire.Number, key int, value ...[]byte) []byte {
		return wire(field, join(wire(1, key), wire(2, join(value...))))
	}
	operation, module := 1, 2
	stats := join(table(5, operation, wire(2, "hlo_op")), table(5, module, wire(2, "hlo_module")),
		table(5, 3, wire(2, "fusion.1")))
	stat := func(name int, number protowire.Number, value any) []byte {
		return wire(4, join(wire(1, name), wire(number, value)))
	}
	event := func(kind, offset, duration int, stats ...[]byte) []byte {
		return wire(4, join(wire(1, kind), wire(2, offset), wire(3, duration), join(stats...)))
	}
	gpu := join(
		wire(3, join(wire(2, "Stream #7"), wire(3, 5000), event(8, 2_000_000, 3_000_999, stat(operation, 5, "dot.3"),
			stat(module, 5, "step")), event(9, 9_000_000, 7_000_000, stat(operation, 7, 3)),
			event(10, 20_000_000, 1_000_000), wire(99, "new"))),
		table(4, 8, wire(2, "gemm_kernel")),
		table(4, 9, wire(2, "loop_kernel"), wire(5, join(wire(1, operation), wire(5, "overridden"))),
			wire(5, join(wire(1, module), wire(5, "step")))),
		table(4, 10, wire(2, "MemcpyD2D")),
		stats, wire(2, "/device:GPU:0"))
	host := join(stats, wire(2, "/host:CPU"), wire(3, join(wire(2, "thread"), wire(3, 4000),
		event(1, 0, 50_000_000, stat(operation, 5, "dot.3")))))
	return join(wire(1, gpu), wire(2, "a warning"), wire(1, host),
		protowire.AppendFixed64(protowire.AppendTag(nil, 50, protowire.Fixed64Type), 1))
}

func TestReadSpace(t *testing.T) {
	p := must.Get(readSpace(handSpace()))(t)
	if ended, err := readSpace(append(handSpace(), 0)); err != nil || !reflect.DeepEqual(ended, p) {
		t.Errorf("with a zero byte after it, as XLA's plugin for CUDA gives it: %+v, %v", ended, err)
	}
	// a plane whose name ends with one
	if last, err := readSpace(wire(1, "\x12\x01\x00")); err != nil || len(last.events) > 0 {
		t.Errorf("with a zero byte in its last field: %+v, %v", last, err)
	}
	want := []event{{true, "step", "dot.3", 3 * time.Microsecond}, {true, "step", "fusion.1", 7 * time.Microsecond},
		{true, "", "", time.Microsecond}, {false, "", "dot.3", 50 * time.Microsecond}}
	if !reflect.DeepEqual(p.events, want) {
		t.Errorf("got %+v, want %+v", p.events, want)
	}
	// The host's event, which launched the device's, does not count.
	if got, want := p.Operations(), []OperationTime{{"step", "fusion.1", 1, 7 * time.Microsecond},
		{"step", "dot.3", 1, 3 * time.Microsecond}}; !slices.Equal(got, want) {
		t.Errorf("operations %+v, want %+v", got, want)
	}
	if p, err := readSpace(nil); err != nil || len(p.events) > 0 || len(p.Operations()) > 0 {
		t.Errorf("an empty one: %+v, %v", p, err)
	}
}

func TestReadDamagedSpace(t *testing.T) {
	whole := mlpSpace(t)
	for _, damaged := range [][]byte{
		whole[:len(whole)-1],
		append(slices.Clone(whole), 0xff),
		append(slices.Clone(whole), 0, 0),
		wire(1, wire(3, wire(4, wire(3, -1)))), // takes less than no time
		wire(1, wire(4, "\xff")),
		wire(1, wire(5, wire(2, "\xff"))),
		wire(1, wire(3, wire(4, wire(4, "\xff")))),
	} {
		if p, err := readSpace(damaged); err == nil {
			t.Errorf("%q was read as %+v", damaged, p)
		}
	}
}

func FuzzReadSpace(f *testing.F) {
	f.Add(mlpSpace(f))
	f.Add(handSpace())
	f.Fuzz(func(t *testing.T, space []byte) {
		p, err := readSpace(space)
		if (p == nil) == (err == nil) {
			t.Fatalf("%v, %v", p, err)
		}
		if err == nil {
			p.Operations()
		}
	})
}
