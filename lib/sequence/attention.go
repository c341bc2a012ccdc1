package sequence

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
)

// Attention is flash.Attention of sequences of so many tokens that the group shares: q is (B,Local,H,D), k
// (B,Local,K,D), v (B,Local,K,E) and the result (B,Local,H,E), this device's tokens of each. The options are those of
// one device, without positions and segments. Padding attends to padding alone, and nothing else sees it; what comes
// out for it is of no use, and its gradient moves nothing else's.
//
// Between the passes a ring keeps a device's own q, k and v, the result, and two numbers for each query and head. See
// [Group.Traffic] for what moves when.
//
// It panics on operands that do not fit, where flash.Attention or Local does, and where Ulysses' ranks do not divide
// the key/value heads.
func (s Group) Attention(q, k, v *graph.Node, tokens int, o flash.Options) *graph.Node {
	l := s.layout(q.Graph(), tokens)
	if err := l.check(q, k, v, o); err != nil {
		panic(err)
	}
	if l.ulysses > 1 { // Jacobs et al. 2023, §3.2: (B,Local,H,D) to (B,u·Local,H/u,D)
		exchange := func(x *graph.Node) *graph.Node { return collective.AllToAll(x, 2, 1, l.Ulysses) }
		q, k, v = exchange(q), exchange(k), exchange(v)
	}
	var out *graph.Node
	switch {
	case l.ring == 1:
		out = flash.Attention(q, k, v, l.alone(q, o))
	case l.Gather:
		out = l.gatherAttention(q, k, v, o)
	default:
		out = l.ringAttention(q, k, v, o)
	}
	if l.ulysses > 1 {
		out = collective.AllToAll(out, 1, 2, l.Ulysses)
	}
	return out
}

func (l layout) check(q, k, v *graph.Node, o flash.Options) error {
	for _, x := range []*graph.Node{q, k, v} {
		if x.Rank() != 4 || x.Shape().Dim(1) != l.local() {
			return fmt.Errorf("sequence: queries are %s, keys %s, values %s: want (B,%d,H,D), (B,%d,K,D) and "+
				"(B,%d,K,E), a device's share of %d tokens",
				q.Shape(), k.Shape(), v.Shape(), l.local(), l.local(), l.local(), l.tokens)
		}
	}
	if o.QueryPositions != nil || o.KeyPositions != nil || o.QuerySegments != nil || o.KeySegments != nil {
		return fmt.Errorf("sequence: the mask has positions or segments of its own: leave them out, the " +
			"group knows its tokens'")
	}
	if err := Exchanges(q.Shape().Dim(2), k.Shape().Dim(2), l.ulysses); err != nil {
		return err
	}
	if q.DType() == dtypes.Float64 && l.Reduce != dtypes.InvalidDType {
		return fmt.Errorf("sequence: sums in %s of attention in Float64: leave Reduce open", l.Reduce)
	}
	return nil
}

// Exchanges returns an error unless so many ranks of Ulysses can exchange a device's heads for tokens: of the query
// heads and of the key/value heads that it has without them, each rank gets equally many.
func Exchanges(heads, keyHeads, ranks int) error {
	if ranks < 1 || heads%ranks != 0 || keyHeads%ranks != 0 {
		return fmt.Errorf("sequence: a device has %d query heads and %d key/value heads, which %d devices cannot "+
			"exchange evenly for tokens (Ulysses): "+
			"choose a number of devices that divides both, or the ring", heads, keyHeads, ranks)
	}
	return nil
}

// sum is the type in which partial results and gradients are summed up.
func (l layout) sum(of dtypes.DType) dtypes.DType {
	switch {
	case l.Reduce != dtypes.InvalidDType:
		return l.Reduce
	case of == dtypes.Float64:
		return dtypes.Float64
	}
	return dtypes.Float32
}

// alone is the mask where a device has all tokens: their positions are the usual ones.
func (l layout) alone(q *graph.Node, o flash.Options) flash.Options {
	if l.padding() == 0 {
		return o
	}
	positions := iota32(q.Graph(), l.onRing())
	o.QuerySegments = l.segments(positions, q.Shape().Dim(0))
	o.KeySegments = o.QuerySegments
	return o
}

// masked is the mask of queries and keys at such positions, in a batch of so many.
func (l layout) masked(o flash.Options, queries, keys *graph.Node, batch int) flash.Options {
	if o.Causal || o.Window > 0 {
		o.QueryPositions, o.KeyPositions = queries, keys
	}
	if l.padding() > 0 {
		o.QuerySegments, o.KeySegments = l.segments(queries, batch), l.segments(keys, batch)
	}
	return o
}

// segments makes padding a segment of its own: 1 at positions from tokens on, 0 before, (B,N).
func (l layout) segments(positions *graph.Node, batch int) *graph.Node {
	padding := graph.GreaterOrEqual(positions, graph.Const(positions.Graph(), int32(l.tokens)))
	n := positions.Shape().Dim(0)
	return graph.BroadcastToDims(graph.Reshape(graph.ConvertDType(padding, dtypes.Int32), 1, n), batch, n)
}

// asksRank reports whether attention needs the device's rank along the ring: for masks, and so that a ring's compiler
// does not know which hops see nothing (see hop).
func (l layout) asksRank(o flash.Options) bool {
	return l.ring > 1 && (!l.Gather || o.Causal || o.Window > 0 || l.padding() > 0)
}
