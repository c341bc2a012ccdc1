package sequence

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/xla"
)

// hop is a step of a ring, in which a rank has the keys of the one so many before it.
type hop struct {
	queries, keys *graph.Node // their positions, (N) int32
	sees          *graph.Node // 1, or 0 where no query sees any key: an int32 scalar that the compiler does not know
}

func (l layout) inHop(n int, o flash.Options, rank *graph.Node) hop {
	g := rank.Graph()
	index, number := iota32(g, l.onRing()), func(i int) *graph.Node { return graph.Const(g, int32(i)) }
	from := graph.Mod(graph.AddScalar(rank, l.ring-n), number(l.ring))
	h := hop{queries: l.positions(index, rank), keys: l.positions(index, from)}
	sees := graph.GreaterOrEqual(rank, number(0)) // which is so
	ahead := func(a, b *graph.Node) *graph.Node { // the least that any of a is ahead of any of b
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

// add returns what more makes of sums and of further nodes, or the sums where the hop's queries see none of its keys.
//
// It is a loop of one turn or none, for two reasons. A hop in which nothing is seen costs nothing. And what a loop
// returns has a place in memory, in which it was summed up: the compiler would otherwise put off all additions to the
// end, where it can do them in one go, and keep what each hop gave until then. All nodes go through the loop, since
// GoMLX does not see what its body takes from outside.
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
