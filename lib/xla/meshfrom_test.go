package xla_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestMeshFrom runs programs on two meshes side by side: tensors are on the mesh's own devices, and collectives stay
// within them.
func TestMeshFrom(t *testing.T) {
	backend := devicetest.OpenOwn(t, 5)
	for _, first := range []int{1, 3} {
		mesh := must.Get(backend.MeshFrom(first, xla.Axis("data", 2)))(t)
		before := backend.Live()
		x := must.Get(mesh.Place([]float32{1, 2, 3, float32(first)}, xla.Shard(0, "data")))(t)
		for device, live := range backend.Live() {
			want := int64(0)
			if device == first || device == first+1 {
				want = 8
			}
			if got := live.Bytes - before[device].Bytes; got != want {
				t.Errorf("a mesh from device %d on: device %d has %d bytes, want %d", first, device, got, want)
			}
		}
		program := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{collective.AllReduce(in[0], collective.Sum, "data")}
		}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))(t)
		out := must.Get(program.Call(x))(t)
		sums := []float32{4, 2 + float32(first)}
		same(t, fmt.Sprintf("a mesh from device %d on", first), out[0].Shards(), sums, sums)
		program.Close()
	}
}

// TestShapes: the shapes of a function with collectives on one device, without compiling; panics are errors.
func TestShapes(t *testing.T) {
	backend := devicetest.OpenOwn(t, 3)
	mesh := must.Get(backend.MeshFrom(1, xla.Axis("data", 2)))(t)
	f32 := dtypes.Float32
	got := must.Get(mesh.Shapes(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{collective.AllGather(in[0], 0, "data"),
			graph.ConvertDType(graph.ReduceAllSum(in[1]), dtypes.BFloat16)}
	}, shapes.Make(f32, 3, 4), shapes.Make(dtypes.Int32, 7)))(t)
	if want := []shapes.Shape{shapes.Make(f32, 6, 4), shapes.Make(dtypes.BFloat16)}; !slices.EqualFunc(got, want,
		shapes.Shape.Equal) {
		t.Errorf("shapes %v, want %v", got, want)
	}
	if got, err := mesh.Shapes(func([]*graph.Node) []*graph.Node { return nil }); err != nil || len(got) != 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	for name, fn := range map[string]func(in []*graph.Node) []*graph.Node{
		"in1":  func(in []*graph.Node) []*graph.Node { return []*graph.Node{graph.Add(in[0], in[1])} },
		"ring": func(in []*graph.Node) []*graph.Node { return []*graph.Node{collective.AllGather(in[0], 0, "ring")} },
	} {
		fails(mesh.Shapes(fn, shapes.Make(f32, 3), shapes.Make(f32, 2)))(t, name, "building the graph: ")
	}
}

// TestText: the text of a program is the same for the same function, with all constants.
func TestText(t *testing.T) {
	backend := devicetest.Open(t, 8)
	text := func(last float32) string {
		table := append(make([]float32, 63), last)
		got := must.Get(backend.Text(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Add(in[0], graph.Const(in[0].Graph(), table))}
		}, shapes.Make(dtypes.Float32, 64)))(t)
		return got
	}
	a := text(7)
	if a != text(7) || a == text(8) || !strings.Contains(a, "stablehlo.add") || !strings.Contains(a, "0.0, 7.0]") {
		t.Error(a)
	}
	fn := func([]*graph.Node) []*graph.Node { panic("a reason") }
	fails(backend.Text(fn))(t, "a function that panics", "a reason")
}
