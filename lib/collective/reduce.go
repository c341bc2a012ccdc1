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

// String returns the reduction's name.
func (op Op) String() string {
	if int(op) >= len(opNames) {
		return fmt.Sprintf("Op(%d)", op)
	}
	return opNames[op]
}

var opNames = []string{"sum", "mean", "max", "min", "product"}

// xla returns the reduction as XLA has it, which has no mean.
func (op Op) xla() compute.ReduceOpType {
	switch op {
	case Sum, Mean:
		return compute.ReduceOpSum
	case Max:
		return compute.ReduceOpMax
	case Min:
		return compute.ReduceOpMin
	case Product:
		return compute.ReduceOpProduct
	}
	panic(fmt.Errorf("%v is not a reduction: use Sum, Mean, Max, Min or Product", op))
}

// check panics if the reduction does not exist for x's type.
func (op Op) check(x *graph.Node, operation string) {
	op.xla()
	if op == Mean && !x.DType().IsFloat() {
		panic(fmt.Errorf("%s: the mean of %v is not defined: convert it to a float, or use Sum", operation, x.DType()))
	}
}

// AllReduce gives every rank the reduction of all ranks' x:
//
//	x[a b] on each of N ranks → [a b], the same on each
//
// Its transpose is itself for Sum and Mean. For Max and Min each result's gradient
// goes to the rank that had the value, in equal parts where several had; for Product
// it is multiplied by the other ranks' values (and has no gradient itself, since GoMLX
// has none for a product over an axis).
func AllReduce(x *graph.Node, op Op, axes ...string) *graph.Node {
	return AllReduceEach([]*graph.Node{x}, op, axes...)[0]
}

// AllReduceEach is AllReduce of several tensors in one operation, as for the
// gradients of a whole model.
func AllReduceEach(xs []*graph.Node, op Op, axes ...string) []*graph.Node {
	if len(xs) == 0 {
		return nil
	}
	axes, n := along(xs[0].Graph(), "AllReduce", axes)
	for _, x := range xs {
		op.check(x, "AllReduce")
	}
	c := xla.Collective{Kind: xla.AllReduce, Reduce: op.xla(), Along: axes}
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
	// What reaches y's gradient below is already x's.
	c.Note = straight
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

// productOfOthers multiplies the other ranks' values. Dividing the product by the own
// value would not do for 0.
func productOfOthers(x *graph.Node, axes []string, n int) *graph.Node {
	g := x.Graph()
	all := AllGather(graph.ExpandAxes(x, 0), 0, axes...)
	ranks := graph.Iota(g, all.Shape(), 0)
	own := graph.Equal(ranks, graph.BroadcastToShape(graph.ConvertDType(Rank(g, axes...), x.DType()), all.Shape()))
	return graph.ReduceMultiply(graph.Where(own, graph.OnesLike(all), all), 0)
}

// Reduce gives the root the reduction of all ranks' x; the others keep theirs:
//
//	x[a b] on each of N ranks → [a b], the reduction on the root, x elsewhere
//
// One program on all devices has the same shapes and operations on each, so it moves
// as much as AllReduce does. Its transpose for Sum is the broadcast of the root's
// gradient, plus the own one elsewhere.
func Reduce(x *graph.Node, op Op, root int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Reduce", axes)
	checkRoot("Reduce", root, n)
	return onRoot(AllReduce(x, op, axes...), x, root, axes)
}

// ReduceScatter gives each rank its part of the reduction of all ranks' x, which is
// cut along an axis:
//
//	x[N·a b] on each of N ranks → [a b]: rows r·a to (r+1)·a of the reduction on rank r
//
// The axis must be a multiple of N. The transpose for Sum is AllGather, for Mean the
// N-th part of it. Max, Min and
// Product have no transpose that moves as little: they are an AllReduce of which each
// rank keeps its part.
func ReduceScatter(x *graph.Node, op Op, axis int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "ReduceScatter", axes)
	axis = tensorAxis(x, "ReduceScatter", axis)
	evenly(x, "ReduceScatter", axis, axes, n)
	op.check(x, "ReduceScatter")
	if op != Sum && op != Mean {
		return Part(AllReduce(x, op, axes...), axis, axes...)
	}
	y := xla.Collective{Kind: xla.ReduceScatter, Reduce: op.xla(), Axis: axis, Along: axes}.Apply(x)[0]
	if op == Mean {
		y = graph.DivScalar(y, float64(n))
	}
	return y
}

// Part gives each rank its own part of its x, cut along an axis, with no exchange:
//
//	x[N·a b] → [a b]: rows r·a to (r+1)·a of x on rank r
//
// The axis must be a multiple of N. The transpose puts the gradient back into place,
// with zeros around it.
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
