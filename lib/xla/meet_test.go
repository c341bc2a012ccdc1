package xla

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla/internal/collective"
)

// exchange is a collective of random sizes between the devices of a mesh a×b.
type exchange struct {
	Collective
	of          dtypes.DType
	dims        []int
	a, b, first int // the mesh, and its first device
}

func randomExchange(random *rand.Rand) exchange {
	e := exchange{a: 2, b: 3, of: meetingTypes[random.IntN(len(meetingTypes))]}
	if random.IntN(3) == 0 {
		e.b, e.first = 2, 2
	}
	var ranks int
	switch random.IntN(4) {
	case 0:
		e.Along, ranks = []string{"a"}, e.a
	case 1:
		e.Along, ranks = []string{"b"}, e.b
	case 2:
		e.Along, ranks = []string{"a", "b"}, e.a*e.b
	default:
		e.Along, ranks = []string{"b", "a"}, e.a*e.b
	}
	for range 1 + random.IntN(3) {
		e.dims = append(e.dims, 1+random.IntN(30))
	}
	e.Kind, e.Axis = CollectiveKind(random.IntN(int(AllToAllV))), random.IntN(len(e.dims))
	e.Concat, e.To = random.IntN(len(e.dims)), random.Perm(ranks)
	e.Reduce = slices.Sorted(maps.Keys(reductions))[random.IntN(len(reductions))]
	if random.IntN(2) == 0 {
		e.To[random.IntN(ranks)] = -1
	}
	if random.IntN(6) == 0 { // several parts of several chunks
		e.dims[len(e.dims)-1] *= 500
	}
	if e.Kind == ReduceScatter || e.Kind == AllToAll {
		e.dims[e.Axis] *= ranks
	}
	return e
}

// results are those of all devices, one after another. A device has the numbers (13·i + 5·device) mod 7 − 3.
func (e exchange) results(t *testing.T, b *Backend) []float64 {
	t.Helper()
	mesh := must.Get(b.MeshFrom(e.first, Axis("a", e.a), Axis("b", e.b)))(t)
	p := must.Get(Compile(mesh, func(device *graph.Node) *graph.Node {
		g := device.Graph()
		n := shapes.Make(dtypes.Int32, e.dims...).Size()
		x := graph.MulScalar(graph.Iota(g, shapes.Make(dtypes.Int32, n), 0), 13)
		x = graph.Add(x, graph.MulScalar(device, 5))
		x = graph.SubScalar(graph.Mod(x, graph.Const(g, int32(7))), 3)
		y := e.Apply(graph.Reshape(graph.ConvertDType(x, e.of), e.dims...))[0]
		return graph.Reshape(graph.ConvertDType(y, dtypes.Float64), 1, -1)
	}, In(Shard(0, "a", "b")).Gives(Shard(0, "a", "b"))))(t)
	defer p.Close()
	devices := make([]int32, e.a*e.b)
	for i := range devices {
		devices[i] = int32(i)
	}
	out := must.Get(p.Call(devices))(t)
	merged := must.Get(out[0].Merge())(t)
	return must.Get(tensors.CopyFlatData[float64](merged))(t)
}

// TestMeet compares random collectives by kernels with XLA's own, which are the second implementation: between all
// devices, in groups along an axis, in a program for some of the devices; and their reports.
func TestMeet(t *testing.T) {
	with := must.Get(Open(Devices(6), Plugin("cpu")))(t)
	defer with.Close()
	without := must.Get(Open(Devices(6), Plugin("cpu"), NoKernels()))(t)
	defer without.Close()
	random := rand.New(rand.NewPCG(7, 1))
	for range 40 {
		e := randomExchange(random)
		got, want := e.results(t, with), e.results(t, without)
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %v, want %v", e, got, want)
		}
	}
}

// forever are collectives in nested loops and branches with matmuls between, on which the kernels' threads work too:
// x ← x·w, then an all-reduce along one axis or, in every third turn, an all-to-all along the other.
func forever(x *graph.Node) *graph.Node {
	g := x.Graph()
	along := func(kind CollectiveKind, axis string, x *graph.Node) *graph.Node {
		return Collective{Kind: kind, Reduce: compute.ReduceOpMax, Along: []string{axis}}.Apply(x)[0]
	}
	turns := func(n int32, x *graph.Node, body func(turn, x *graph.Node) *graph.Node) *graph.Node {
		return While([]*graph.Node{graph.Const(g, int32(0)), x}, func(s []*graph.Node) *graph.Node {
			return graph.LessThan(s[0], graph.Const(s[0].Graph(), n))
		}, func(s []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.AddScalar(s[0], 1), body(s[0], s[1])}
		})[1]
	}
	return turns(4, x, func(outer, x *graph.Node) *graph.Node {
		x = turns(5, x, func(inner, x *graph.Node) *graph.Node {
			// XLA's own matmul, after which a program goes on in a thread that XLA's matmuls need.
			both := graph.Stack([]*graph.Node{x, graph.Neg(x)}, 0)
			both = graph.DotGeneral(both, []int{2}, []int{0}, both, []int{1}, []int{0})
			x = graph.Add(graph.Dot(x, x).Product(), graph.ReduceSum(both, 0))
			three := graph.Const(inner.Graph(), int32(3))
			return If(graph.Equal(graph.Mod(inner, three), graph.OnesLike(three)),
				func() []*graph.Node { return []*graph.Node{along(AllToAll, "b", x)} },
				func() []*graph.Node {
					// Two that do not depend on each other.
					y, z := along(AllReduce, "a", x), along(AllReduce, "b", graph.Neg(x))
					return []*graph.Node{graph.DivScalar(graph.Sub(y, z), 2)}
				})[0]
		})
		largest := graph.AddScalar(graph.ReduceAllMax(graph.Abs(x)), 1)
		return graph.Div(x, along(AllReduce, "a", along(AllReduce, "b", largest)))
	})
}

// TestMeetUnderStress has programs for 8 devices run at once, with one thread for all matmuls. A device that waits for
// another while it holds that thread would never end.
func TestMeetUnderStress(t *testing.T) {
	const child = "SHARDBOOK_TEST_MEET"
	if os.Getenv(child) == "" {
		command := exec.Command(os.Args[0], "-test.run=^TestMeetUnderStress$", "-test.timeout=5m")
		command.Env = append(os.Environ(), child+"=1", "NPROC=1", "PJRT_NPROC=1")
		if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("with one thread: %v\n%s", err, out)
		}
	}
	b := must.Get(Open(Devices(8), Plugin("cpu")))(t)
	defer b.Close()
	without := must.Get(Open(Devices(8), Plugin("cpu"), NoKernels()))(t)
	defer without.Close()
	const side = 96
	x := make([]float32, 8*side*side)
	for i := range x {
		x[i] = float32(i%17-8) / side
	}
	run := func(b *Backend, first, a, c, times int) ([]float32, error) {
		mesh, err := b.MeshFrom(first, Axis("a", a), Axis("b", c))
		if err != nil {
			return nil, err
		}
		rows := Shard(0, "a", "b")
		p, err := Compile(mesh, forever, In(rows).Gives(rows))
		if err != nil {
			return nil, err
		}
		defer p.Close()
		var last []float32
		for range times {
			out, err := p.Call(tensors.FromFlatDataAndDimensions(x[:a*c*side*side], a*c*side, side))
			if err != nil {
				return nil, err
			}
			merged, err := out[0].Merge()
			if err != nil {
				return nil, err
			}
			if last, err = tensors.CopyFlatData[float32](merged); err != nil {
				return nil, err
			}
		}
		return last, nil
	}
	meshes := []struct{ first, a, c int }{{0, 2, 4}, {0, 4, 2}, {2, 3, 2}, {4, 2, 2}, {0, 2, 2}}
	var all sync.WaitGroup
	for _, m := range meshes {
		want := must.Get(run(without, m.first, m.a, m.c, 1))(t)
		all.Go(func() {
			got, err := run(b, m.first, m.a, m.c, 8)
			for i := range got {
				if d := got[i] - want[i]; d > 1e-5 || d < -1e-5 {
					err = errors.Join(err, fmt.Errorf("value %d is %g, want %g", i, got[i], want[i]))
					break
				}
			}
			if err != nil {
				t.Errorf("%+v: %v", m, err)
			}
		})
	}
	all.Wait()
}

// TestMeetWithoutOne has one of the devices stay away from a collective: the program's error says so, and the next run
// works.
func TestMeetWithoutOne(t *testing.T) {
	collective.Wait(300 * time.Millisecond)
	defer collective.Wait(collective.Limit)
	b := must.Get(Open(Devices(3), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("all", 3)))(t)
	p := must.Get(Compile(mesh, func(x *graph.Node) *graph.Node {
		return If(graph.Equal(graph.Reshape(x), graph.Const(x.Graph(), float32(1))), func() []*graph.Node {
			return Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"all"}}.Apply(x)
		}, func() []*graph.Node { return []*graph.Node{x} })[0]
	}, In(Shard(0, "all")).Gives(Shard(0, "all"))))(t)
	defer p.Close()
	_, err := p.Call([]float32{1, 0, 1})
	if want := "all-reduce: 2 of 3 devices came within 0.3 s"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	out := must.Get(p.Call([]float32{1, 1, 1}))(t)
	sums := must.Get(tensors.CopyFlatData[float32](must.Get(out[0].Merge())(t)))(t)
	if !slices.Equal(sums, []float32{3, 3, 3}) {
		t.Errorf("%v, want three times 3", sums)
	}
}

// TestMeetInAUsedClosure refuses a closure with a collective that is used twice.
func TestMeetInAUsedClosure(t *testing.T) {
	b := must.Get(Open(Devices(2), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("all", 2)))(t)
	_, err := mesh.Shapes(func(in []*graph.Node) []*graph.Node {
		x := in[0]
		sums := closure(x.Graph(), func(*graph.Graph) []*graph.Node {
			return Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"all"}}.Apply(x)
		})
		holds := graph.GreaterThan(graph.ReduceAllSum(x), graph.Const(x.Graph(), float32(0)))
		return graph.If(holds, sums, sums)
	}, shapes.Make(dtypes.Float32, 4))
	if want := "a closure with collectives is used twice"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
