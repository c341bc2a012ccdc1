package residual

import (
	"errors"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Checkpoint returns fn of x and the others, in this order, and has the backward pass make again what fn makes of them,
// as [recompute.Call] does. But of x, which must be the same on all N ranks along a mesh axis, each rank keeps between
// the passes only its N-th part (P_a, ZeRO §6.1; flat, and padded where N does not divide it). The forward pass uses x
// itself and exchanges nothing; the backward pass gathers the parts, once for each checkpoint, when the gradient
// arrives.
//
// The others are what else fn needs, such as weights, and are kept as they are. fn must reach through its arguments
// whatever needs a gradient. The gradients are those of [recompute.Call], of each rank's own fn: that of x is summed
// over the ranks only if fn says so (collective.F). They have no gradients of their own. With one rank it is
// recompute.Call.
//
// Blocks are checkpointed one after the other, the output of one being x of the next. Inside Node.Checkpoint or
// recompute.Call results are the same, but nothing is saved.
//
// It builds a graph, and panics on nil nodes, without such a mesh axis, and where fn does.
func Checkpoint(fn func(in []*graph.Node) []*graph.Node, axis string, x *graph.Node,
	others ...*graph.Node) []*graph.Node {
	if x == nil || slices.Contains(others, nil) {
		panic(errors.New("residual: Checkpoint of a nil node: leave it out"))
	}
	ranks := collective.AxisSize(x.Graph(), axis)
	if ranks == 1 {
		return recompute.Call(func(x []*graph.Node) []*graph.Node { return fn(slices.Concat(x, others)) }, x)
	}
	kept := Hold(axis, x, Part(x, axis))
	forward := func(in []*graph.Node) []*graph.Node {
		// for GoMLX does not know that a conditional depends on what is inside
		same := graph.OptimizationBarriers(in[1], in[0])
		return fn(slices.Concat(same[:1], in[3:]))
	}
	backward := func(in, _, v []*graph.Node) []*graph.Node {
		// Neither the part nor what is gathered of it may be needed before the gradients are there.
		ready := Hold(axis, append([]*graph.Node{in[2]}, v...)...)
		again := slices.Concat([]*graph.Node{Whole(ready[0], in[0].Shape(), axis)}, in[3:])
		of := pull(fn, again, ready[1:])
		return slices.Concat(of[:1], []*graph.Node{nil, nil}, of[1:])
	}
	return autodiff.Custom(slices.Concat([]*graph.Node{x}, kept, others), forward, backward)
}

// Part is this rank's part of x's bits, in one dimension, padded where the ranks along a mesh axis do not divide it.
// (Bits, since compilers may hold floats in wider types.) It builds a graph, and panics without such an axis.
func Part(x *graph.Node, axis string) *graph.Node {
	ranks := collective.AxisSize(x.Graph(), axis)
	flat := graph.Reshape(precision.ToBits(x), -1)
	if over := x.Shape().Size() % ranks; over > 0 {
		flat = graph.Concatenate([]*graph.Node{flat, graph.Zeros(x.Graph(), shapes.Make(flat.DType(), ranks-over))}, 0)
	}
	return collective.Part(flat, 0, axis)
}

// Whole gathers the parts of an array of a shape. It builds a graph, and panics without such a mesh axis.
func Whole(part *graph.Node, like shapes.Shape, axis string) *graph.Node {
	flat := collective.AllGather(part, 0, axis)
	if flat.Shape().Size() > like.Size() {
		flat = graph.Slice(flat, graph.AxisRange(0, like.Size()))
	}
	return precision.FromBits(graph.Reshape(flat, like.Dimensions...), like.DType)
}

// pull returns the gradients of fn's arguments, at these, for the gradients v of its results; nil for what is no float.
func pull(fn func(in []*graph.Node) []*graph.Node, in, v []*graph.Node) []*graph.Node {
	leaves := make([]*graph.Node, len(in))
	var floats []*graph.Node
	for i, x := range in {
		leaves[i] = graph.StopGradient(x).StopCheckpoint() // nothing, for graph.Gradient, is behind it
		if x.DType().IsFloat() {
			floats = append(floats, leaves[i])
		}
	}
	// Nothing computes the sum: its gradient for y is v.
	sum := graph.Const(in[0].Graph(), float32(0))
	for i, y := range fn(slices.Clone(leaves)) {
		if y.DType().IsFloat() {
			part := graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i])))
			sum = graph.Add(sum, graph.ConvertDType(part, dtypes.Float32))
		}
	}
	gradients := make([]*graph.Node, len(in))
	if len(floats) == 0 {
		return gradients
	}
	of := graph.Gradient(sum, floats...)
	for i, x := range in {
		if x.DType().IsFloat() {
			gradients[i], of = of[0], of[1:]
		}
	}
	return gradients
}
