package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// softmax returns exp(x)/Σexp(x) along the last axis. Its gradient is written out, as it needs the result alone: GoMLX's
// would keep the numerator, as large again, from the forward pass to the backward.
func softmax(x *graph.Node) *graph.Node {
	forward := func(in []*graph.Node) []*graph.Node {
		e := graph.Exp(graph.Sub(in[0], graph.ReduceAndKeep(in[0], graph.ReduceMax, -1)))
		return []*graph.Node{graph.Div(e, graph.ReduceAndKeep(e, graph.ReduceSum, -1))}
	}
	backward := func(_, out, v []*graph.Node) []*graph.Node {
		mean := graph.ReduceAndKeep(graph.Mul(out[0], v[0]), graph.ReduceSum, -1)
		return []*graph.Node{graph.Mul(out[0], graph.Sub(v[0], mean))}
	}
	return autodiff.Custom([]*graph.Node{x}, forward, backward)[0]
}
