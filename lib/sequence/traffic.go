package sequence

import (
	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/xla"
)

// Layer is what the traffic of an attention layer depends on.
type Layer struct {
	Batch, Tokens   int // sequences, and the tokens of each before padding
	Heads, KeyHeads int
	Width           int          // of a head
	Type            dtypes.DType // of queries, keys and values
}

// Move is the operations of one kind that each rank takes part in, and what they move.
type Move struct {
	xla.Traffic // as Program.Collectives counts them
	// bytes that leave the rank: of the buffers all in a hop, (N−1)/N in what N ranks exchange or gather
	Sent int64
}

// Traffic returns what attention moves in the passes of one layer, with so many ranks along the ring and of Ulysses: a
// formula, which a test compares with what XLA made of the graph. For N tokens of a batch with padding, P ranks in all,
// query heads h wide together and key/value heads g, each rank's buffers have in each pass
//
//	Ulysses:          (2h + 2g)·N/P      4 all-to-alls
//	ring:       (r−1)·2g·N/P             r−1 permutes, and backwards r of gradients besides
//	Gather:          r·2g·N/P            2 all-gathers, and backwards 2 reduce-scatters instead
//
// numbers of the layer's type, but gradients of rings and Gather in that of Reduce. It panics where Local does.
func (s Group) Traffic(layer Layer, ring, ulysses int) (forward, backward []Move) {
	if err := s.Validate(); err != nil {
		panic(err)
	}
	l := s.on(layer.Tokens, ring, ulysses)
	row := int64(layer.Batch) * int64(l.local()) * int64(layer.Width) // numbers of a head
	size, sum := int64(layer.Type.Size()), int64(l.sum(layer.Type).Size())
	if ulysses > 1 {
		heads := int64(2*layer.Heads + 2*layer.KeyHeads)
		exchange := move(xla.AllToAll, 4, heads*row*size, ulysses)
		forward, backward = append(forward, exchange), append(backward, exchange)
	}
	// numbers of a ring rank's keys and values, its ranks of Ulysses having a part each
	keys := 2 * int64(layer.KeyHeads) * row
	hops, all := int64(ring-1), int64(ring)
	switch {
	case ring == 1:
	case s.Gather:
		forward = append(forward, move(xla.AllGather, 2, all*keys*size, ring))
		backward = append(backward, move(xla.ReduceScatter, 2, all*keys*sum, ring))
	default:
		forward = append(forward, move(xla.Permute, int(hops), hops*keys*size, ring))
		backward = append(backward, move(xla.Permute, int(hops+all), hops*keys*size+all*keys*sum, ring))
	}
	return forward, backward
}

// Once returns what a graph moves once, however many layers it has, for attention with such a mask: the numbers by
// which the ranks of a ring know themselves (collective.Rank), 4 bytes for each. Nothing without a ring, and with
// Gather where nothing is masked. It panics where Local does.
func (s Group) Once(o flash.Options, tokens, ring, ulysses int) []Move {
	if !s.on(tokens, ring, ulysses).asksRank(o) {
		return nil
	}
	return []Move{move(xla.AllToAll, 1, 4*int64(ring), ring)}
}

func move(kind xla.CollectiveKind, count int, buffers int64, ranks int) Move {
	sent := buffers
	if kind != xla.Permute {
		sent = buffers / int64(ranks) * int64(ranks-1)
	}
	return Move{xla.Traffic{Kind: kind, Count: count, Bytes: buffers}, sent}
}
