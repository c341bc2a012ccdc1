package xla_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMeshErrors(t *testing.T) {
	b := devicetest.OpenOwn(t, 4)
	for _, test := range []struct {
		axes []xla.MeshAxis
		want string
	}{
		{nil, "empty"},
		{[]xla.MeshAxis{xla.Axis("data", 0)}, `"data" has size 0`},
		{[]xla.MeshAxis{xla.Axis("data", -2)}, `"data" has size -2`},
		{[]xla.MeshAxis{xla.Axis("data", 8)}, "data=8"},
		{[]xla.MeshAxis{xla.Axis("data", 1<<40), xla.Axis("tensor", 1<<40)}, "4 devices"},
		{[]xla.MeshAxis{xla.Axis("data", 4), xla.Axis("tensor", 1<<62)}, "4 devices"},
		{[]xla.MeshAxis{xla.Axis("data", 2), xla.Axis("data", 2)}, "duplicated"},
		{[]xla.MeshAxis{xla.Axis("1st", 2)}, "1st"},
	} {
		if _, err := b.Mesh(test.axes...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Mesh(%v): error %v, want one that says %q", test.axes, err, test.want)
		}
	}
}

func TestPlaceErrors(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	for _, test := range []struct {
		value     any
		placement xla.Placement
		want      string
	}{
		{[]float32{1, 2, 3, 4, 5, 6}, xla.Shard(0, "data"), "not divisible at axis 0"},
		{[]float32{1, 2, 3, 4}, xla.Shard(1, "data"), "splits axis 1"},
		{[]float32{1, 2, 3, 4}, xla.Shard(-1, "data"), "axis -1"},
		{[]float32{1, 2, 3, 4}, xla.Shard(0, "tensor"), `no axis "tensor"`},
		{[]float32{1, 2, 3, 4}, xla.Shard(math.MaxInt, "data"), "axis 9223372036854775807"},
		{struct{}{}, xla.Replicated(), "struct"},
		{nil, xla.Replicated(), "nil"},
		{(*tensors.Tensor)(nil), xla.Replicated(), "nil"},
		{finalized(t), xla.Replicated(), "invalid"},
	} {
		if _, err := mesh.Place(test.value, test.placement); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Place(%v, %v): error %v, want one that says %q", test.value, test.placement, err, test.want)
		}
	}
}

func finalized(t *testing.T) *tensors.Tensor {
	x := tensors.FromScalar(float32(1))
	check(t, x.FinalizeAll())
	return x
}

// TestPlaceAndMerge checks, for meshes with one and two axes, which elements each device has, and that the shards merge
// to the full tensor.
func TestPlaceAndMerge(t *testing.T) {
	b := devicetest.OpenOwn(t, 8)
	for _, test := range []struct{ data, tensor int }{{1, 1}, {2, 1}, {1, 3}, {2, 3}, {4, 2}, {8, 1}} {
		mesh := must(b.Mesh(xla.Axis("data", test.data), xla.Axis("tensor", test.tensor)))(t)
		rows, cols := 2*test.data, 3*test.tensor
		whole := iota2D(rows, cols)
		placed := must(mesh.Place(whole, xla.Shard(0, "data").And(1, "tensor")))(t)
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
		merged := must(placed.Merge())(t)
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
	single := must(graph.NewExec(b, func(x, w *graph.Node) (*graph.Node, *graph.Node) {
		y := graph.Dot(x, w).Product()
		return y, graph.ReduceAllSum(graph.ConvertDType(y, dtypes.Float64))
	}))(t)
	want := must(single.Call(x, w))(t)
	for world := 1; world <= 8; world++ {
		mesh := must(b.Mesh(xla.Axis("data", world)))(t)
		program := must(xla.Compile(mesh, func(x, w *graph.Node) (*graph.Node, *graph.Node) {
			y := graph.Dot(x, w).Product()
			sum := graph.ReduceAllSum(graph.ConvertDType(y, dtypes.Float64))
			return y, x.Graph().Distributed().Along("data").AllReduceOne(sum, compute.ReduceOpSum)
		}, xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"), xla.Replicated())))(t)
		got, err := program.Call(clone(t, x), clone(t, w))
		if err != nil {
			t.Fatalf("world %d: %v", world, err)
		}
		y := must(got[0].Merge())(t)
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

func TestProgramOutputsAreInputsOfTheNext(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	layout := xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))
	double := must(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.MulScalar(x, 2) }, layout))(t)
	var x any = []float32{1, 2, 3, 4}
	for range 3 {
		out := must(double.Call(x))(t)
		x = out[0]
	}
	got := fmt.Sprint(merge(t, x).Value())
	if want := "[8 16 24 32]"; got != want {
		t.Errorf("doubled three times: %s, want %s", got, want)
	}
}

func TestProgramErrors(t *testing.T) {
	b := devicetest.OpenOwn(t, 2)
	mesh := must(b.Mesh(xla.Axis("data", 2)))(t)
	identity := func(x *graph.Node) *graph.Node { return graph.Identity(x) }
	if _, err := xla.Compile(mesh, identity, xla.In(xla.Replicated())); err == nil {
		t.Error("a layout without outputs: no error")
	}
	if _, err := xla.Compile(mesh, identity, xla.In(xla.Shard(0, "tensor")).Gives(xla.Replicated())); err == nil {
		t.Error("an unknown mesh axis: no error")
	}
	program := must(xla.Compile(mesh, func(x *graph.Node) *graph.Node { panic("broken on purpose") },
		xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	if _, err := program.Memory(); err == nil {
		t.Error("Memory before the first call: no error")
	}
	for range 2 { // once it broke, it must not be waited for
		if _, err := program.Call(float32(1)); fmt.Sprint(err) != "broken on purpose" {
			t.Errorf("a graph function that panics: %v", err)
		}
	}
	defer program.Close()
	if _, err := program.Call(); err == nil {
		t.Error("too few arguments: no error")
	}
	if _, err := program.Call(nil); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("a nil argument: %v", err)
	}
	sharded := must(mesh.Place([]float32{1, 2}, xla.Shard(0, "data")))(t)
	if _, err := program.Call(sharded); err == nil || !strings.Contains(err.Error(), "placed as") {
		t.Errorf("a sharded argument where a replicated one is wanted: %v", err)
	}
	other := must(b.Mesh(xla.Axis("tensor", 2)))(t)
	elsewhere := must(other.Place([]float32{1, 2}, xla.Replicated()))(t)
	if _, err := program.Call(elsewhere); err == nil || !strings.Contains(err.Error(), "another mesh") {
		t.Errorf("an argument on another mesh: %v", err)
	}
	if _, err := program.Call(1, 2, 3); err == nil {
		t.Error("too many arguments: no error")
	}
}

func TestMemory(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	program := must(xla.Compile(mesh, func(x, w *graph.Node) *graph.Node { return graph.Dot(x, w).Product() },
		xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"))))(t)
	check(t, program.Prepare(iota2D(64, 32), iota2D(32, 16)))
	m := must(program.Memory())(t)
	// On each device: inputs are 16 rows of x and all of w, outputs 16 rows of y.
	if want := int64(16*32+32*16) * 4; m.Arguments != want {
		t.Errorf("arguments %d bytes, want %d", m.Arguments, want)
	}
	if want := int64(16*16) * 4; m.Outputs != want {
		t.Errorf("outputs %d bytes, want %d", m.Outputs, want)
	}
	if m.Aliased != 0 {
		t.Errorf("%d bytes aliased, though nothing was donated", m.Aliased)
	}
	if m.Total() != m.Arguments+m.Outputs+m.Temporary {
		t.Errorf("total %d of %+v", m.Total(), m)
	}
}

func TestLive(t *testing.T) {
	b := devicetest.OpenOwn(t, 2)
	mesh := must(b.Mesh(xla.Axis("data", 2)))(t)
	if got := fmt.Sprint(b.Live()); got != "[{0 0} {0 0}]" {
		t.Fatalf("live buffers before anything was placed: %s", got)
	}
	placed := must(mesh.Place(make([]float32, 1000), xla.Shard(0, "data")))(t)
	if got := fmt.Sprint(b.Live()); got != "[{1 2000} {1 2000}]" {
		t.Errorf("live buffers with 500 floats on each device: %s", got)
	}
	check(t, placed.FinalizeAll())
	if got := fmt.Sprint(b.Live()); got != "[{0 0} {0 0}]" {
		t.Errorf("live buffers after all were freed: %s", got)
	}
	if got := fmt.Sprint(b.PeakBytes()); got != "[2000 2000]" {
		t.Errorf("peak: %s", got)
	}
}

func TestCallFreesWhatItPlaces(t *testing.T) {
	b := devicetest.OpenOwn(t, 2)
	mesh := must(b.Mesh(xla.Axis("data", 2)))(t)
	sum := must(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.ReduceAllSum(x) },
		xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))(t)
	out := must(sum.Call(make([]float32, 1000)))(t)
	if got := fmt.Sprint(b.Live()); got != "[{1 4} {1 4}]" {
		t.Errorf("live after a call with a host value: %s, want the output alone", got)
	}
	out[0].FinalizeAll()
	b.Close()
	if got := fmt.Sprint(b.Live()); got != "[{0 0} {0 0}]" {
		t.Errorf("live after Close: %s", got)
	}
	if _, err := b.Mesh(xla.Axis("data", 2)); err == nil {
		t.Error("a mesh of a closed backend: no error")
	}
}

// A closed program returns an error; a program that is used while it is closed returns a result or an error.
func TestClosedProgram(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	for range 5 {
		p := must(xla.Compile(mesh, graph.Neg, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		must(p.Call(float32(1)))(t)
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
		_, err1 := p.Call(float32(1))
		_, err2 := p.Memory()
		_, err3 := p.Collectives()
		for _, err := range []error{err1, err2, err3, p.Prepare(float32(1))} {
			if err == nil || !strings.Contains(err.Error(), "closed") {
				t.Errorf("after Close: %v", err)
			}
		}
		p.Close()
	}
}

// Prepare returns the errors of Call.
func TestPrepareChecksPlacements(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must(xla.Compile(mesh, graph.Neg, xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))(t)
	defer p.Close()
	whole := must(mesh.Place([]float32{1, 2}, xla.Replicated()))(t)
	if err := p.Prepare(whole); err == nil || !strings.Contains(err.Error(), "placed as") {
		t.Errorf("a tensor placed otherwise: %v", err)
	}
	if _, err := xla.Compile(nil, graph.Neg, xla.In(xla.Replicated()).Gives(xla.Replicated())); err == nil {
		t.Error("a nil mesh was accepted")
	}
}
