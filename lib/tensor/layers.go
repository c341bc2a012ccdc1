package tensor

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// Matmul multiplies x (…,in) by w (in,out): (…,out). Which numbers it computes in is its own affair. It must do with
// any number of tokens, and each token's row must depend on that token alone.
type Matmul = func(x, w *graph.Node) *graph.Node

// Columns multiplies x by matrices whose columns are shared: this device has w (C,N/n) of each. x is (B,T,C), the same
// on each device, or (B,T/n,C), its part of the tokens, with Sequence. The results are (B,T,N/n), one for each matrix.
//
// All of them together have one f: no communication, and in the backward pass one all-reduce of B·T·C numbers of x's
// type. With Sequence they have one all-gather, and in the backward pass another one and one reduce-scatter: the
// gathered x is not kept for the gradients of the matrices, but gathered again (Korthikanti et al., §4.2.2). With
// Overlap an all-gather and the reduce-scatter are n−1 collective-permutes of B·T/n·C numbers each, and what came with
// them is kept. The gradient of a matrix is then the sum of n products, one for each chunk, in the type of the matrix;
// all else adds up in the same order as without.
func (t Group) Columns(x *graph.Node, ws []*graph.Node, product Matmul) []*graph.Node {
	check(x.Rank() == 3, "Columns: x has shape %s: want (B,T,C)", x.Shape())
	switch {
	case t.overlaps(x.Graph()):
		return t.ringColumns(x, ws, product)
	case t.sharesTokens(x.Graph()):
		return t.gatherColumns(x, ws, product)
	}
	return products(t.Enter(x), ws, product)
}

func products(x *graph.Node, ws []*graph.Node, product Matmul) []*graph.Node {
	ys := make([]*graph.Node, len(ws))
	for i, w := range ws {
		ys[i] = product(x, w)
	}
	return ys
}

// gatherColumns is Columns of tokens that are gathered, and gathered again in the backward pass.
func (t Group) gatherColumns(x *graph.Node, ws []*graph.Node, product Matmul) []*graph.Node {
	return autodiff.Custom(append([]*graph.Node{x}, ws...),
		func(in []*graph.Node) []*graph.Node { return products(t.Enter(in[0]), in[1:], product) },
		func(in, _, v []*graph.Node) []*graph.Node {
			// Not before v is there: the compiler would make one of the two gathers.
			all := t.Enter(graph.StopGradient(graph.SchedulingBarrier(in[0], v[0])))
			toward := graph.ScalarZero(all.Graph(), all.DType()) // the scalar whose gradients these are
			for i, y := range products(all, in[1:], product) {
				toward = graph.Add(toward, graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i]))))
			}
			gradients := graph.Gradient(toward, append([]*graph.Node{all}, in[1:]...)...)
			gradients[0] = t.Leave(gradients[0])
			return gradients
		})
}

// Rows multiplies x (B,T,N/n), the results of [Group.Columns] or what elementwise functions or heads make of them, by a
// matrix whose rows are shared: this device has w (N/n,C). It returns the sum over the devices (B,T,C), the same on
// each, or with Sequence this device's part of the tokens (B,T/n,C).
//
// That is one g: one all-reduce of B·T·C numbers, and none in the backward pass. With Sequence it is one
// reduce-scatter, and one all-gather in the backward pass; with Overlap each is n−1 collective-permutes of B·T/n·C
// numbers, and bits differ by the order in which the devices' parts, and the n products of the matrix's gradient, are
// added. Sums are in the type of the product, as Megatron's are: in float32 those of bfloat16 would move twice the
// bytes. A bias belongs behind Rows, lest it is added n times.
func (t Group) Rows(x, w *graph.Node, product Matmul) *graph.Node {
	check(x.Rank() == 3, "Rows: x has shape %s: want (B,T,N/n)", x.Shape())
	if t.overlaps(x.Graph()) {
		return t.ringRows(x, w, product)
	}
	return t.Leave(product(x, w))
}

// Enter stands before what the devices share. It is f: x, the same on each device, whose gradient is the sum of the
// devices' gradients. With Sequence it is the all-gather of x (B,T/n,…) along axis 1, (B,T,…); the transpose is the
// reduce-scatter.
func (t Group) Enter(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.AllGather(x, 1, t.Axis)
	}
	return collective.F(x, t.Axis)
}

// Leave stands behind what the devices share. It is g: the sum of the devices' x (B,T,…), whose gradient is the
// gradient of each. With Sequence it is the reduce-scatter along axis 1, (B,T/n,…); the transpose is the all-gather.
func (t Group) Leave(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.ReduceScatter(x, collective.Sum, 1, t.Axis)
	}
	return collective.G(x, t.Axis)
}
