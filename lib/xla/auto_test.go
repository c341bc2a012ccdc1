package xla_test

import (
	"math"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// ramp is a matrix of small, distinct numbers.
func ramp(rows, columns int) *tensors.Tensor {
	values := make([]float32, rows*columns)
	for i := range values {
		values[i] = float32(math.Sin(float64(i + 1)))
	}
	return tensors.FromFlatDataAndDimensions(values, rows, columns)
}

// TestAutoSharding: the compiler splits a layer with sharded weights as Megatron does, with one all-reduce; a
// constraint changes that choice and never the result. Gradients pass through constraints.
func TestAutoShardingEqualsOneDevice(t *testing.T) {
	layer := func(x, w1, w2 *graph.Node, constrain func(*graph.Node) *graph.Node) *graph.Node {
		h := constrain(graph.Tanh(graph.Dot(x, w1).Product()))
		return graph.Dot(h, w2).Product()
	}
	x, w1, w2 := ramp(4, 8), ramp(8, 16), ramp(16, 8)
	same := func(h *graph.Node) *graph.Node { return h }
	want := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		y := layer(in[0], in[1], in[2], same)
		return append(graph.Gradient(graph.ReduceAllSum(graph.Square(y)), in[1]), y)
	}, x, w1, w2))(t)
	mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("tensor", 4)))(t)
	columns, rows := xla.Shard(1, "tensor"), xla.Shard(0, "tensor")
	for _, c := range []struct {
		name      string
		constrain func(*graph.Node) *graph.Node
		moves     bool // the compiler must move h
	}{
		{"free", same, false},
		{"as it is", func(h *graph.Node) *graph.Node { return xla.Constrain(h, columns) }, false},
		{"by rows", func(h *graph.Node) *graph.Node { return xla.Constrain(h, rows) }, true},
	} {
		p := must.Get(xla.CompileAuto(mesh, func(x, w1, w2 *graph.Node) (*graph.Node, *graph.Node) {
			y := layer(x, w1, w2, c.constrain)
			return graph.Gradient(graph.ReduceAllSum(graph.Square(y)), w1)[0], y
		}, xla.In(xla.Replicated(), columns, rows).Gives(columns, xla.Replicated())))(t)
		out, err := p.Call(x, w1, w2)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for i, got := range whole(t, out...) {
			if !got.InDelta(want[i], 1e-5) {
				t.Errorf("%s: output %d is %v, want %v", c.name, i, got, want[i])
			}
		}
		report := must.Get(p.Collectives())(t)
		if moves := report.Of(xla.AllToAll).Count > 0; moves != c.moves || !moves &&
			report.Of(xla.AllReduce).Count != 1 {
			t.Errorf("%s: the compiler chose %v", c.name, report)
		}
		p.Close()
	}
}

// whole merges the shards of placed tensors.
func whole(t *testing.T, placed ...*dtensor.Tensor) (all []*tensors.Tensor) {
	t.Helper()
	for _, p := range placed {
		all = append(all, must.Get(p.Merge())(t))
	}
	return all
}

func TestAutoShardingErrors(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	split := xla.Shard(0, "data")
	constrain := func(p xla.Placement) func(x *graph.Node) *graph.Node {
		return func(x *graph.Node) *graph.Node { return xla.Constrain(x, p) }
	}
	type fn = func(x *graph.Node) *graph.Node
	spmd, auto := xla.Compile[fn], xla.CompileAuto[fn]
	for _, c := range []struct {
		name    string
		compile func(*xla.Mesh, func(x *graph.Node) *graph.Node, xla.Shardings) (*xla.Program, error)
		fn      func(x *graph.Node) *graph.Node
		want    string
	}{
		{"constraint in SPMD", spmd, constrain(split), "CompileAuto"},
		{"collective in AutoSharding", auto, func(x *graph.Node) *graph.Node {
			return xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum}.Apply(x)[0]
		}, "AutoSharding"},
		{"axis that the tensor lacks", auto, constrain(xla.Shard(1, "data")), "splits axis 1"},
		{"axis that the mesh lacks", auto, constrain(xla.Shard(0, "model")), `no axis "model"`},
		{"output that does not divide", auto, func(x *graph.Node) *graph.Node {
			return graph.Slice(x, graph.AxisRange(0, 3))
		}, "not divisible"},
	} {
		p := must.Get(c.compile(mesh, c.fn, xla.In(split).Gives(split)))(t)
		fails(p.Call([]float32{1, 2, 3, 4}))(t, c.name, c.want)
		p.Close()
	}
}

// The last placement of the inputs is repeated.
func TestAutoShardingOfFewPlacements(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must.Get(xla.CompileAuto(mesh, func(x, y *graph.Node) *graph.Node {
		return graph.Add(graph.ReduceAllSum(x), graph.ReduceAllSum(y))
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))(t)
	defer p.Close()
	out := must.Get(p.Call([]float32{1, 2, 3, 4}, []float32{10, 20, 30, 40}))(t)
	same(t, "both devices", out[0].Shards(), []float32{110}, []float32{110})
}
