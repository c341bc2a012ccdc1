package tensor

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// GoMLX derives the gradients of both rings: the gradient of a shift is the shift back. Only cutting x into chunks and
// joining them have gradients of their own (chunks, ordered): GoMLX's would add up n arrays that are mostly zeros.

// overlaps reports whether a graph uses the rings.
func (t Group) overlaps(g *graph.Graph) bool { return t.Overlap && t.splitsTokens(g) }

// ringColumns is Columns in chunks: at step s the device multiplies the tokens of rank r−s and sends them on.
func (t Group) ringColumns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	n := t.Size(x.Graph())
	results := make([][]*graph.Node, len(ws)) // of each matrix, by step
	for s := range n {
		here := x
		if s < n-1 {
			x = collective.RingShift(here, 1, t.Axis)
		}
		for i, w := range ws {
			results[i] = append(results[i], matmul(here, w))
		}
	}
	ys := make([]*graph.Node, len(ws))
	for i, chunks := range results {
		ys[i] = t.ordered(chunks, 0)
	}
	return ys
}

// ringRows is Rows in chunks: the sum for the tokens of rank d starts at rank d+1 and ends at rank d. At step s rank r
// multiplies the tokens of rank r−1−s while it receives the sum that they belong to.
func (t Group) ringRows(x, w *graph.Node, matmul Matmul) *graph.Node {
	n := t.Size(x.Graph())
	check(x.Shape().Dim(1)%n == 0, "Rows: %d devices do not divide the %d tokens of x %s", n, x.Shape().Dim(1),
		x.Shape())
	var sum *graph.Node
	for s, chunk := range t.chunks(x, 1) {
		if s == 0 {
			sum = matmul(chunk, w)
			continue
		}
		sum = collective.RingShift(sum, 1, t.Axis)
		sum = graph.Add(sum, matmul(chunk, w))
	}
	return sum
}

// chunks cuts x (B,T,…) along the tokens into n chunks (B,T/n,…). On rank r chunk s has the tokens of rank r−back−s.
// Its backward pass is the function ordered.
func (t Group) chunks(x *graph.Node, back int) []*graph.Node {
	return autodiff.Custom([]*graph.Node{x}, func(in []*graph.Node) []*graph.Node { return t.cutTokens(in[0], back) },
		func(_, _, v []*graph.Node) []*graph.Node { return []*graph.Node{t.joinTokens(v, back)} })
}

// ordered joins chunks to x.
func (t Group) ordered(chunks []*graph.Node, back int) *graph.Node {
	return autodiff.Custom(chunks, func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{t.joinTokens(in,
			back)}
	}, func(_, _, v []*graph.Node) []*graph.Node { return t.cutTokens(v[0], back) })[0]
}

func (t Group) cutTokens(x *graph.Node, back int) []*graph.Node {
	n := t.Size(x.Graph())
	dims := x.Shape().Clone().Dimensions
	dims[1] /= n
	chunks := make([]*graph.Node, n)
	for s := range chunks {
		chunks[s] = graph.DynamicSlice(x, t.starts(x, back+s, dims[1]), dims)
	}
	return chunks
}

func (t Group) joinTokens(chunks []*graph.Node, back int) *graph.Node {
	shape := chunks[0].Shape().Clone()
	length := shape.Dimensions[1]
	shape.Dimensions[1] *= len(chunks)
	x := graph.Zeros(chunks[0].Graph(), shape)
	for s, chunk := range chunks {
		x = graph.DynamicUpdateSlice(x, chunk, t.starts(x, back+s, length))
	}
	return x
}

// starts returns the indices in x (B,T,…) at which the tokens of rank r−back start, with length tokens for each rank.
func (t Group) starts(x *graph.Node, back, length int) []*graph.Node {
	g := x.Graph()
	n := t.Size(g)
	starts := make([]*graph.Node, x.Rank())
	for i := range starts {
		starts[i] = graph.Const(g, int32(0))
	}
	rank := graph.ModScalar(graph.AddScalar(t.Rank(g), 2*n-back), n) // back is less than 2n
	starts[1] = graph.MulScalar(rank, length)
	return starts
}
