package xla_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMeshErrors(t *testing.T) {
	b := devicetest.OpenOwn(t, 4)
	for _, test := range []struct {
		first int
		axes  []xla.MeshAxis
		want  string
	}{
		{0, nil, "empty"},
		{0, []xla.MeshAxis{xla.Axis("data", 0)}, `mesh axis "data" has size 0`},
		{2, []xla.MeshAxis{xla.Axis("data", -2)}, `mesh axis "data" has size -2`},
		{0, []xla.MeshAxis{xla.Axis("data", 8)}, "mesh (data=8) needs more than the backend's 4 devices: make it"},
		{2, []xla.MeshAxis{xla.Axis("data", 3)}, "needs more than the backend's 2 devices from number 2 on: make it"},
		{0, []xla.MeshAxis{xla.Axis("data", 1<<40), xla.Axis("tensor", 1<<40)}, "4 devices"},
		{0, []xla.MeshAxis{xla.Axis("data", 4), xla.Axis("tensor", 1<<62)}, "4 devices"},
		{0, []xla.MeshAxis{xla.Axis("data", 2), xla.Axis("data", 2)}, "duplicated"},
		{0, []xla.MeshAxis{xla.Axis("1st", 2)}, "1st"},
		{-1, nil, "a mesh from device -1 on: choose a device from 0 to 3"},
		{4, nil, "a mesh from device 4 on"},
	} {
		fails(b.MeshFrom(test.first, test.axes...))(t, fmt.Sprint(test.first, test.axes), test.want)
	}
}

func TestPlaceErrors(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	four := []float32{1, 2, 3, 4}
	for _, test := range []struct {
		value     any
		placement xla.Placement
		want      string
	}{
		{[]float32{1, 2, 3, 4, 5, 6}, xla.Shard(0, "data"), "not divisible at axis 0"},
		{four, xla.Shard(1, "data"), "splits axis 1"},
		{four, xla.Shard(-1, "data"), "axis -1"},
		{four, xla.Shard(0, "tensor"), `no axis "tensor"`},
		{four, xla.Shard(math.MaxInt, "data"), "axis 9223372036854775807"},
		{struct{}{}, xla.Replicated(), "struct"},
		{nil, xla.Replicated(), "nil"},
		{(*tensors.Tensor)(nil), xla.Replicated(), "nil"},
		{finalized(t), xla.Replicated(), "invalid"},
	} {
		fails(mesh.Place(test.value, test.placement))(t, fmt.Sprint(test.value, test.placement), test.want)
	}
}

func finalized(t *testing.T) *tensors.Tensor {
	x := tensors.FromScalar(float32(1))
	must.Do(t, x.FinalizeAll())
	return x
}

// TestPlaceAndMerge checks, for meshes with one and two axes, which elements each device has, and that the shards merge
// to the full tensor.
func TestPlaceAndMerge(t *testing.T) {
	b := devicetest.OpenOwn(t, 8)
	for _, test := range []struct{ data, tensor int }{{1, 1}, {2, 1}, {1, 3}, {2, 3}, {4, 2}, {8, 1}} {
		mesh := must.Get(b.Mesh(xla.Axis("data", test.data), xla.Axis("tensor", test.tensor)))(t)
		rows, cols := 2*test.data, 3*test.tensor
		whole := iota2D(rows, cols)
		placed := must.Get(mesh.Place(whole, xla.Shard(0, "data").And(1, "tensor")))(t)
		for device, shard := range placed.Shards() {
			at, err := shard.Device()
			if err != nil || int(at) != device {
				t.Errorf("mesh %v: shard %d lies on device %v (error %v)", test, device, at, err)
			}
			d, tn := device/test.tensor, device%test.tensor
			for i, got := range shard.Value().([][]float32) {
				for j, v := range got {
					if want := float32((2*d+i)*cols + 3*tn + j); v != want {
						t.Fatalf("mesh %v, device %d, element (%d,%d): %v, want %v", test, device, i, j, v, want)
					}
				}
			}
		}
		merged := must.Get(placed.Merge())(t)
		if !merged.Equal(whole) {
			t.Errorf("mesh %v: the shards join to %v, want %v", test, merged, whole)
		}
	}
}

func iota2D(rows, cols int) *tensors.Tensor {
	flat := make([]float32, rows*cols)
	for i := range flat {
		flat[i] = float32(i)
	}
	return tensors.FromFlatDataAndDimensions(flat, rows, cols)
}

// TestProgramEveryWorldSize runs a program on meshes of 1 to 8 devices: a matmul whose rows are sharded, and its sum by
// an all-reduce.
func TestProgramEveryWorldSize(t *testing.T) {
	b := devicetest.OpenOwn(t, 8)
	const rows, inner, cols = 840, 3, 2 // 840 divides by every number to 8
	x, w := iota2D(rows, inner), iota2D(inner, cols)
	single := must.Get(graph.NewExec(b, func(x, w *graph.Node) (*graph.Node, *graph.Node) {
		y := graph.Dot(x, w).Product()
		return y, graph.ReduceAllSum(graph.ConvertDType(y, dtypes.Float64))
	}))(t)
	want := must.Get(single.Call(x, w))(t)
	for world := 1; world <= 8; world++ {
		mesh := must.Get(b.Mesh(xla.Axis("data", world)))(t)
		program := must.Get(xla.Compile(mesh, func(x, w *graph.Node) (*graph.Node, *graph.Node) {
			y := graph.Dot(x, w).Product()
			sum := graph.ReduceAllSum(graph.ConvertDType(y, dtypes.Float64))
			return y, x.Graph().Distributed().Along("data").AllReduceOne(sum, compute.ReduceOpSum)
		}, xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"), xla.Replicated())))(t)
		got, err := program.Call(clone(t, x), clone(t, w))
		if err != nil {
			t.Fatalf("world %d: %v", world, err)
		}
		y := must.Get(got[0].Merge())(t)
		if !y.Equal(want[0]) {
			t.Errorf("world %d: the sharded product differs from one device's", world)
		}
		for device, sum := range got[1].Shards() {
			if !sum.Equal(want[1]) {
				t.Errorf("world %d, device %d: sum %v, want %v", world, device, sum, want[1])
			}
		}
	}
}

func TestProgramErrors(t *testing.T) {
	b := devicetest.OpenOwn(t, 2)
	mesh := must.Get(b.Mesh(xla.Axis("data", 2)))(t)
	fails(xla.Compile(mesh, graph.Identity, xla.In(xla.Replicated())))(t, "a layout without outputs")
	unknown := xla.In(xla.Shard(0, "tensor")).Gives(xla.Replicated())
	fails(xla.Compile(mesh, graph.Identity, unknown))(t, "an unknown mesh axis", `no axis "tensor"`)
	program := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node { panic("broken on purpose") },
		xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	fails(program.Memory())(t, "Memory before the first call")
	for range 2 { // once it broke, it must not be waited for
		if _, err := program.Call(float32(1)); fmt.Sprint(err) != "broken on purpose" {
			t.Errorf("a graph function that panics: %v", err)
		}
	}
	defer program.Close()
	fails(program.Call())(t, "too few arguments")
	fails(program.Call(nil))(t, "a nil argument", "nil")
	sharded := must.Get(mesh.Place([]float32{1, 2}, xla.Shard(0, "data")))(t)
	fails(program.Call(sharded))(t, "a sharded argument where a replicated one is wanted", "placed as")
	other := must.Get(b.Mesh(xla.Axis("tensor", 2)))(t)
	elsewhere := must.Get(other.Place([]float32{1, 2}, xla.Replicated()))(t)
	fails(program.Call(elsewhere))(t, "an argument on another mesh", "another mesh")
	fails(program.Call(1, 2, 3))(t, "too many arguments")
}

func TestMemory(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	program := must.Get(xla.Compile(mesh, func(x, w *graph.Node) *graph.Node { return graph.Dot(x, w).Product() },
		xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"))))(t)
	must.Do(t, program.Prepare(iota2D(64, 32), iota2D(32, 16)))
	m := must.Get(program.Memory())(t)
	// On each device: inputs are 16 rows of x and all of w, outputs 16 rows of y.
	if want := (xla.Memory{Arguments: (16*32 + 32*16) * 4, Outputs: 16 * 16 * 4, Temporary: m.Temporary,
		Code: m.Code}); m != want || m.Total() != m.Arguments+m.Outputs+m.Temporary {
		t.Errorf("%+v and %d in total, want %+v", m, m.Total(), want)
	}
}

func TestLive(t *testing.T) {
	b := devicetest.OpenOwn(t, 2)
	mesh := must.Get(b.Mesh(xla.Axis("data", 2)))(t)
	live := func(when, want string) {
		t.Helper()
		if got := fmt.Sprint(b.Live()); got != want {
			t.Errorf("live buffers %s: %s, want %s", when, got, want)
		}
	}
	live("before anything is placed", "[{0 0} {0 0}]")
	placed := place(t, mesh, make([]float32, 1000))
	live("with 500 floats on each device", "[{1 2000} {1 2000}]")
	must.Do(t, placed.FinalizeAll())
	live("when all are freed", "[{0 0} {0 0}]")
	sum := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.ReduceAllSum(x) },
		xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))(t)
	out := must.Get(sum.Call(make([]float32, 100)))(t)
	live("after a call with a host value", "[{1 4} {1 4}]") // the output alone
	out[0].FinalizeAll()
	if got := fmt.Sprint(b.PeakBytes()); got != "[2000 2000]" {
		t.Errorf("peak: %s", got)
	}
	b.Close()
	live("after Close", "[{0 0} {0 0}]")
	fails(b.Mesh(xla.Axis("data", 2)))(t, "a mesh of a closed backend", "closed")
}

// A closed program returns an error; a program that is used while it is closed returns a result or an error.
func TestClosedProgram(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	for range 5 {
		p := must.Get(xla.Compile(mesh, graph.Neg, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		must.Get(p.Call(float32(1)))(t)
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for {
					_, err := p.Call(float32(1))
					_, err2 := p.Collectives()
					if err != nil || err2 != nil {
						return
					}
				}
			})
		}
		p.Close()
		asking.Wait()
		fails(p.Call(float32(1)))(t, "Call after Close", "closed")
		fails(p.Memory())(t, "Memory after Close", "closed")
		fails(p.Collectives())(t, "Collectives after Close", "closed")
		fails(p.Operations())(t, "Operations after Close", "closed")
		must.Refuse(t, "Prepare after Close", p.Prepare(float32(1)), "closed")
		p.Close()
	}
}

// Prepare returns the errors of Call.
func TestPrepareChecksPlacements(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must.Get(xla.Compile(mesh, graph.Neg, xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))(t)
	defer p.Close()
	whole := must.Get(mesh.Place([]float32{1, 2}, xla.Replicated()))(t)
	must.Refuse(t, "a tensor placed otherwise", p.Prepare(whole), "placed as")
	fails(xla.Compile(nil, graph.Neg, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t, "a nil mesh was accepted")
}
