package sequence

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
)

// Attention is flash.Attention over sequences that are split over the group; tokens is their full length. q is
// (B,Local,H,D), k (B,Local,K,D), v (B,Local,K,E) and the result (B,Local,H,E), each with the device's tokens. The
// options are those of one device, without positions and segments. Padding attends only to padding, and has no effect
// on other outputs or gradients.
//
// A ring saves the device's own q, k and v, the output, and two numbers for each query and head. See [Group.Traffic]
// for its communication.
//
// It panics on wrong shapes, on arguments on which flash.Attention or [Group.Local] panic, and if the Ulysses ranks do
// not divide the heads.
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
				"(B,%d,K,E) for a device's part of %d tokens",
				q.Shape(), k.Shape(), v.Shape(), l.local(), l.local(), l.local(), l.tokens)
		}
	}
	if o.QueryPositions != nil || o.KeyPositions != nil || o.QuerySegments != nil || o.KeySegments != nil {
		return fmt.Errorf("sequence: the mask has positions or segments: leave them nil, since the group sets them")
	}
	if err := Exchanges(q.Shape().Dim(2), k.Shape().Dim(2), l.ulysses); err != nil {
		return err
	}
	if q.DType() == dtypes.Float64 && l.Reduce != dtypes.InvalidDType {
		return fmt.Errorf("sequence: Reduce is %s and attention is in Float64: leave Reduce unset", l.Reduce)
	}
	return nil
}

// Exchanges returns an error unless the number of Ulysses ranks divides both the query heads and the key/value heads of
// a device.
func Exchanges(heads, keyHeads, ranks int) error {
	if ranks < 1 || heads%ranks != 0 || keyHeads%ranks != 0 {
		return fmt.Errorf("sequence: a device has %d query heads and %d key/value heads, which %d devices cannot "+
			"exchange evenly for tokens (Ulysses): choose a number of devices that divides both, or the ring",
			heads, keyHeads, ranks)
	}
	return nil
}

// sum is the type in which partial results and gradients accumulate.
func (l layout) sum(of dtypes.DType) dtypes.DType {
	switch {
	case l.Reduce != dtypes.InvalidDType:
		return l.Reduce
	case of == dtypes.Float64:
		return dtypes.Float64
	}
	return dtypes.Float32
}

// alone returns the mask if a device has all tokens, in order.
func (l layout) alone(q *graph.Node, o flash.Options) flash.Options {
	if l.padding() == 0 {
		return o
	}
	positions := iota32(q.Graph(), l.onRing())
	o.QuerySegments = l.segments(positions, q.Shape().Dim(0))
	o.KeySegments = o.QuerySegments
	return o
}

// masked returns the mask of queries and keys at these positions.
func (l layout) masked(o flash.Options, queries, keys *graph.Node, batch int) flash.Options {
	if o.Causal || o.Window > 0 {
		o.QueryPositions, o.KeyPositions = queries, keys
	}
	if l.padding() > 0 {
		o.QuerySegments, o.KeySegments = l.segments(queries, batch), l.segments(keys, batch)
	}
	return o
}

// segments returns the segments (B,N) of positions (N): 1 for padding, 0 for tokens.
func (l layout) segments(positions *graph.Node, batch int) *graph.Node {
	padding := graph.GreaterOrEqual(positions, graph.Const(positions.Graph(), int32(l.tokens)))
	n := positions.Shape().Dim(0)
	return graph.BroadcastToDims(graph.Reshape(graph.ConvertDType(padding, dtypes.Int32), 1, n), batch, n)
}
