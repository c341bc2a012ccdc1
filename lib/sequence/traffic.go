package sequence

import (
	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/xla"
)

// Layer has the sizes of an attention layer, for [Group.Traffic].
type Layer struct {
	Batch, Tokens   int // sequences, and the tokens of each before padding
	Heads, KeyHeads int
	Width           int          // dimension of a head
	Type            dtypes.DType // of queries, keys and values
}

// Move is the collectives of one kind in a pass of a layer, on each rank.
type Move struct {
	xla.Traffic // their number and buffers, as Program.Collectives counts them
	// Sent is the bytes that the rank sends: the full buffers in a hop, (N−1)/N of them in a collective of N ranks.
	Sent int64
}

// Traffic predicts the communication of attention in both passes of one layer, with the given numbers of ring and
// Ulysses ranks. A test compares it with XLA's programs. Let N be the tokens of a batch with padding, P the number of
// ranks, h the total width of query heads and g that of key heads. Each rank's buffers in each pass have
//
//	Ulysses:          (2h + 2g)·N/P      4 all-to-alls
//	ring:       (r−1)·2g·N/P             r−1 permutes; the backward pass adds r of gradients
//	Gather:          r·2g·N/P            2 all-gathers; 2 reduce-scatters in the backward pass
//
// elements of the layer's type; gradients of rings and Gather have the type of Reduce. A ring also needs one all-to-all
// of 4 bytes for each rank, once in a graph, to know its ranks. It panics where Local does.
func (s Group) Traffic(layer Layer, ring, ulysses int) (forward, backward []Move) {
	if err := s.Validate(); err != nil {
		panic(err)
	}
	l := s.on(layer.Tokens, ring, ulysses)
	row := int64(layer.Batch) * int64(l.local()) * int64(layer.Width) // elements of a head
	size, sum := int64(layer.Type.Size()), int64(l.sum(layer.Type).Size())
	if ulysses > 1 {
		heads := int64(2*layer.Heads + 2*layer.KeyHeads)
		exchange := move(xla.AllToAll, 4, heads*row*size, ulysses)
		forward, backward = append(forward, exchange), append(backward, exchange)
	}
	// elements of a device's keys and values, before or after Ulysses
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

func move(kind xla.CollectiveKind, count int, buffers int64, ranks int) Move {
	sent := buffers
	if kind != xla.Permute {
		sent = buffers / int64(ranks) * int64(ranks-1)
	}
	return Move{xla.Traffic{Kind: kind, Count: count, Bytes: buffers}, sent}
}
