package sequence

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
)

// gatherAttention gathers all keys and values along the ring and attends to them at once (Llama Team 2024,
// arXiv:2407.21783, §3.3.2).
func (l layout) gatherAttention(q, k, v *graph.Node, o flash.Options) *graph.Node {
	g := q.Graph()
	index, n := iota32(g, l.onRing()*l.ring), graph.Const(g, int32(l.onRing()))
	rank := graph.Const(g, int32(0))
	if o.Causal || o.Window > 0 || l.padding() > 0 {
		rank = l.ringRank(g)
	}
	queries := l.positions(iota32(g, l.onRing()), rank)
	keys := l.positions(graph.Mod(index, n), graph.Div(index, n))
	return flash.Attention(q, l.gather(k), l.gather(v), l.masked(o, queries, keys, q.Shape().Dim(0)))
}

// gather gathers the tokens (axis 1) of all ranks. Its gradient is reduced in the type of sum, which for half types is
// not x's type.
func (l layout) gather(x *graph.Node) *graph.Node {
	return autodiff.Custom([]*graph.Node{x},
		func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{collective.AllGather(in[0], 1, l.Ring)}
		},
		func(in, _, gradient []*graph.Node) []*graph.Node {
			sum := collective.ReduceScatter(graph.ConvertDType(gradient[0], l.sum(x.DType())), collective.Sum, 1,
				l.Ring)
			return []*graph.Node{graph.ConvertDType(sum, x.DType())}
		})[0]
}
