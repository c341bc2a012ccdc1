package gpt

import (
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// attention projects x (B,T,C) to queries, keys and values in one product, attends within each head, and mixes the
// heads (B,T,C).
func (c Config) attention(p params.Nodes, at string, x *graph.Node) *graph.Node {
	b, t := x.Shape().Dim(0), x.Shape().Dim(1)
	qkv := Linear(x, p.Get(at+".qkv.w"), p.Get(at+".qkv.b"))    // (B,T,3C)
	qkv = graph.Reshape(qkv, b, t, 3, c.Heads, c.Width/c.Heads) // (B,T,3,H,D)
	part := func(k int) *graph.Node {                           // (B,T,H,D)
		return graph.Squeeze(graph.Slice(qkv, graph.AxisRange(), graph.AxisRange(), graph.AxisElem(k)), 2)
	}
	y := CausalAttention(part(0), part(1), part(2)) // (B,T,H,D)
	return Linear(graph.Reshape(y, b, t, c.Width), p.Get(at+".o.w"), p.Get(at+".o.b"))
}

// CausalAttention returns softmax(q·kᵀ/√D)·v within each head, a position seeing itself and those before it: scaled
// dot-product attention (Vaswani et al. 2017, §3.2.1). All of q, k, v and the result are (B,T,H,D). It holds the
// scores of all pairs of positions, (B,H,T,T). It panics if the shapes differ or are not of rank 4.
func CausalAttention(q, k, v *graph.Node) *graph.Node {
	t, d := q.Shape().Dim(1), q.Shape().Dim(3)
	scores := graph.Einsum("bqhd,bkhd->bhqk", graph.MulScalar(q, 1/math.Sqrt(float64(d))), k)
	seen := graph.BroadcastToDims(graph.ExpandLeftToRank(graph.LowerTriangular(q.Graph(), t), 4), scores.Shape().Dimensions...)
	scores = graph.Where(seen, scores, graph.Infinity(q.Graph(), q.DType(), -1))
	return graph.Einsum("bhqk,bkhd->bqhd", graph.Softmax(scores, -1), v)
}
