package tensor

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// Matmul multiplies x (…,in) by w (in,out) and returns (…,out), in any precision. It must support any number of tokens,
// and each token's row must depend on that token alone.
type Matmul = func(x, w *graph.Node) *graph.Node

// Columns is Megatron's column-parallel linear layer: it multiplies x by matrices that are sharded by columns. The
// device has the shard w (C,N/n) of each. x is (B,T,C), the same on each device; with Sequence it is the device's
// tokens (B,T/n,C). The results are (B,T,N/n), one for each matrix.
//
// All matrices share the communication: none in the forward pass, and one all-reduce of B·T·C elements of x's type in
// the backward pass. With Sequence it is one all-gather in the forward pass, and one all-gather and one reduce-scatter
// in the backward pass, because the gathered x is not saved (Korthikanti et al., §4.2.2). With Overlap an all-gather or
// a reduce-scatter is n−1 collective-permutes of B·T/n·C elements, and the gathered x is saved; the gradient of a
// matrix is then the sum of n matmuls, one for each chunk, in the type of the matrix.
func (t Group) Columns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	check(x.Rank() == 3, "Columns: x has shape %s: want (B,T,C)", x.Shape())
	switch {
	case t.overlaps(x.Graph()):
		return t.ringColumns(x, ws, matmul)
	case t.splitsTokens(x.Graph()):
		return t.gatherColumns(x, ws, matmul)
	}
	return matmuls(t.Enter(x), ws, matmul)
}

func matmuls(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	ys := make([]*graph.Node, len(ws))
	for i, w := range ws {
		ys[i] = matmul(x, w)
	}
	return ys
}

// gatherColumns is Columns with Sequence. The backward pass gathers x a second time.
func (t Group) gatherColumns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	return autodiff.Custom(append([]*graph.Node{x}, ws...),
		func(in []*graph.Node) []*graph.Node { return matmuls(t.Enter(in[0]), in[1:], matmul) },
		func(in, _, v []*graph.Node) []*graph.Node {
			// The barrier keeps the compiler from merging both gathers, which would save the gathered x.
			all := t.Enter(graph.StopGradient(graph.SchedulingBarrier(in[0], v[0])))
			toward := graph.ScalarZero(all.Graph(), all.DType()) // the scalar to differentiate
			for i, y := range matmuls(all, in[1:], matmul) {
				toward = graph.Add(toward, graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i]))))
			}
			gradients := graph.Gradient(toward, append([]*graph.Node{all}, in[1:]...)...)
			gradients[0] = t.Leave(gradients[0])
			return gradients
		})
}

// Rows is Megatron's row-parallel linear layer: it multiplies x (B,T,N/n), computed from the results of
// [Group.Columns], by a matrix that is sharded by rows. The device has the shard w (N/n,C). It returns the sum over the
// devices (B,T,C), the same on each; with Sequence it returns the device's tokens (B,T/n,C).
//
// The forward pass has one all-reduce of B·T·C elements, the backward pass no communication. With Sequence these are
// one reduce-scatter and one all-gather; with Overlap each is n−1 collective-permutes of B·T/n·C elements, and results
// differ by rounding. Sums are in the type of the matmul's result, as in Megatron. Add a bias after Rows, not before,
// or it is added n times.
func (t Group) Rows(x, w *graph.Node, matmul Matmul) *graph.Node {
	check(x.Rank() == 3, "Rows: x has shape %s: want (B,T,N/n)", x.Shape())
	if t.overlaps(x.Graph()) {
		return t.ringRows(x, w, matmul)
	}
	return t.Leave(matmul(x, w))
}

// Enter is Megatron's f, at the start of a tensor-parallel region: it returns x, the same on each device, and sums its
// gradients over the devices. With Sequence it is the all-gather of x (B,T/n,…) along axis 1 to (B,T,…), whose backward
// pass is the reduce-scatter.
func (t Group) Enter(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.AllGather(x, 1, t.Axis)
	}
	return collective.F(x, t.Axis)
}

// Leave is Megatron's g, at the end of a tensor-parallel region: it sums x (B,T,…) over the devices, and each gets the
// gradient unchanged. With Sequence it is the reduce-scatter along axis 1 to (B,T/n,…), whose backward pass is the
// all-gather.
func (t Group) Leave(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.ReduceScatter(x, collective.Sum, 1, t.Axis)
	}
	return collective.G(x, t.Axis)
}
