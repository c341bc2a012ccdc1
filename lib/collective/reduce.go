package collective

import (
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// Op is a reduction over ranks.
type Op uint8

const (
	Sum Op = iota
	Mean
	Max
	Min
	Product
)

// reductions have the name of each, and XLA's operation; for Mean, which XLA does not have, the sum.
var reductions = []struct {
	name string
	xla  compute.ReduceOpType
}{
	Sum: {"sum", compute.ReduceOpSum}, Mean: {"mean", compute.ReduceOpSum}, Max: {"max", compute.ReduceOpMax},
	Min: {"min", compute.ReduceOpMin}, Product: {"product", compute.ReduceOpProduct},
}

// String returns the reduction's name.
func (op Op) String() string {
	if int(op) >= len(reductions) {
		return fmt.Sprintf("Op(%d)", op)
	}
	return reductions[op].name
}

// check panics if the reduction does not exist for x's type.
func (op Op) check(x *graph.Node, operation string) {
	if int(op) >= len(reductions) {
		panic(fmt.Errorf("%v is not a reduction: use Sum, Mean, Max, Min or Product", op))
	}
	if op == Mean && !x.DType().IsFloat() {
		panic(fmt.Errorf("%s: the mean of %v is not defined: convert it to a float, or use Sum", operation, x.DType()))
	}
}

// AllReduce gives every rank the reduction of all ranks' x:
//
//	x[a b] on each of N ranks → [a b], the same on each
//
// Its backward pass is itself for Sum and Mean. For Max and Min the gradient goes to the rank that has the value, or in
// equal parts to several; for Product it is multiplied by the other ranks' values, and has no second gradient, since
// GoMLX has none for a product over an axis.
func AllReduce(x *graph.Node, op Op, axes ...string) *graph.Node {
	return AllReduceEach([]*graph.Node{x}, op, axes...)[0]
}

// AllReduceEach reduces several tensors in one all-reduce, for example all gradients of a model.
func AllReduceEach(xs []*graph.Node, op Op, axes ...string) []*graph.Node {
	if len(xs) == 0 {
		return nil
	}
	axes, n := along(xs[0].Graph(), "AllReduce", axes)
	for _, x := range xs {
		op.check(x, "AllReduce")
	}
	c := xla.Collective{Kind: xla.AllReduce, Reduce: reductions[op].xla, Along: axes}
	switch op {
	case Sum:
		return c.Apply(xs...)
	case Mean:
		ys := c.Apply(xs...)
		for i, y := range ys {
			ys[i] = graph.DivScalar(y, float64(n))
		}
		return ys
	}
	// The custom gradient below already returns x's gradient.
	c.Note = identity
	ys := c.Apply(xs...)
	for i, x := range xs {
		ys[i] = graph.IdentityWithCustomGradient(ys[i], func(y, v *graph.Node) *graph.Node {
			v = AllReduce(v, Sum, axes...)
			if op == Product {
				return graph.Mul(v, productOfOthers(x, axes, n))
			}
			has := graph.ConvertDType(graph.Equal(x, y), x.DType())
			return graph.Div(graph.Mul(v, has), AllReduce(has, Sum, axes...))
		})
	}
	return ys
}

// productOfOthers multiplies the other ranks' values. Dividing the product by the rank's own value fails for 0.
func productOfOthers(x *graph.Node, axes []string, n int) *graph.Node {
	g := x.Graph()
	all := AllGather(graph.ExpandAxes(x, 0), 0, axes...)
	ranks := graph.Iota(g, all.Shape(), 0)
	own := graph.Equal(ranks, graph.BroadcastToShape(graph.ConvertDType(Rank(g, axes...), x.DType()), all.Shape()))
	return graph.ReduceMultiply(graph.Where(own, graph.OnesLike(all), all), 0)
}

// Reduce gives the root the reduction of all ranks' x, and the others their own x:
//
//	x[a b] on each of N ranks → [a b], the reduction on the root, x elsewhere
//
// It is an AllReduce, with the same traffic, since all devices run the same program. The backward pass for Sum gives
// each rank the root's gradient; other ranks add the gradient of their own output.
func Reduce(x *graph.Node, op Op, root int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Reduce", axes)
	checkRoot("Reduce", root, n)
	return onRoot(AllReduce(x, op, axes...), x, root, axes)
}

// ReduceScatter splits the reduction of all ranks' x along an axis and gives each rank one part:
//
//	x[N·a b] on each of N ranks → [a b]: rows r·a to (r+1)·a of the reduction on rank r
//
// The axis must be a multiple of N. Its backward pass is AllGather for Sum, and AllGather divided by N for Mean. With
// Max, Min and Product it is an AllReduce followed by [Part], because their backward passes need the full reduction.
func ReduceScatter(x *graph.Node, op Op, axis int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "ReduceScatter", axes)
	axis = tensorAxis(x, "ReduceScatter", axis)
	evenly(x, "ReduceScatter", axis, axes, n)
	op.check(x, "ReduceScatter")
	if op != Sum && op != Mean {
		return Part(AllReduce(x, op, axes...), axis, axes...)
	}
	y := xla.Collective{Kind: xla.ReduceScatter, Reduce: reductions[op].xla, Axis: axis, Along: axes}.Apply(x)[0]
	if op == Mean {
		y = graph.DivScalar(y, float64(n))
	}
	return y
}

// Part splits x along an axis and gives rank r part r of its own x, without communication:
//
//	x[N·a b] → [a b]: rows r·a to (r+1)·a of x on rank r
//
// The axis must be a multiple of N. Its backward pass pads the gradient with zeros.
func Part(x *graph.Node, axis int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Part", axes)
	axis = tensorAxis(x, "Part", axis)
	evenly(x, "Part", axis, axes, n)
	size := x.Shape().Clone().Dimensions
	size[axis] /= n
	start := make([]*graph.Node, x.Rank())
	for i := range start {
		start[i] = graph.Const(x.Graph(), int32(0))
	}
	start[axis] = graph.MulScalar(Rank(x.Graph(), axes...), size[axis])
	return graph.DynamicSlice(x, start, size)
}
