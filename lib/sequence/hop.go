package sequence

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/xla"
)

// hop is step n of a ring, in which rank r has the keys of rank r−n.
type hop struct {
	queries, keys *graph.Node // positions, (N) int32
	sees          *graph.Node // 1, or 0 if no query sees a key: an int32 scalar that is not a constant to the compiler
}

func (l layout) inHop(n int, o flash.Options, rank *graph.Node) hop {
	g := rank.Graph()
	index, number := iota32(g, l.onRing()), func(i int) *graph.Node { return graph.Const(g, int32(i)) }
	from := graph.Mod(graph.AddScalar(rank, l.ring-n), number(l.ring))
	h := hop{queries: l.positions(index, rank), keys: l.positions(index, from)}
	sees := graph.GreaterOrEqual(rank, number(0)) // always true, but not a constant
	ahead := func(a, b *graph.Node) *graph.Node { // the least distance from any of b to any of a
		return graph.Sub(graph.ReduceAllMin(a), graph.ReduceAllMax(b))
	}
	if o.Causal {
		sees = graph.LogicalAnd(sees, graph.LessOrEqual(ahead(h.keys, h.queries), number(0)))
	}
	if o.Window > 0 {
		sees = graph.LogicalAnd(sees, graph.LessThan(ahead(h.queries, h.keys), number(o.Window)))
		sees = graph.LogicalAnd(sees, graph.LessThan(ahead(h.keys, h.queries), number(o.Window)))
	}
	h.sees = graph.ConvertDType(sees, dtypes.Int32)
	return h
}

// add returns more(sums, in), or sums unchanged if the hop's queries see none of its keys.
//
// It is a loop of one iteration or none, for two reasons. A hop without visible keys costs nothing. And a loop
// accumulates in its own buffers: otherwise the compiler would delay all additions to the end, to fuse them, and keep
// every hop's results in memory until then. All nodes pass through the loop, since GoMLX does not see what its body
// uses from outside.
func (h hop) add(sums, in []*graph.Node, more func(sums, in []*graph.Node) []*graph.Node) []*graph.Node {
	n := len(sums)
	state := append(append([]*graph.Node{h.sees}, sums...), in...)
	return xla.While(state, func(s []*graph.Node) *graph.Node {
		return graph.GreaterThan(s[0], graph.ZerosLike(s[0]))
	}, func(s []*graph.Node) []*graph.Node {
		sums := more(s[1:n+1], s[n+1:])
		return append(append([]*graph.Node{graph.ZerosLike(s[0])}, sums...), s[n+1:]...)
	})[1 : n+1]
}
