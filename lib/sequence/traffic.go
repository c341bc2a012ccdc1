package sequence

import (
	"fmt"
	"slices"
	"sort"

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

// Work returns the number of block matmuls in causal ring attention, for each hop and rank. It counts the pairs of a
// query block and a key block, both of the given number of tokens, in which at least one query sees a key. In hop h
// rank r has the keys of rank r−h. Padding does not count. It panics if Positions does, and if block is less than 1.
func (p Placement) Work(tokens, ranks, block int) [][]int {
	if block < 1 {
		panic(fmt.Errorf("sequence: blocks of %d tokens: choose at least 1", block))
	}
	type extent struct{ least, greatest int }
	blocks := make([][]extent, ranks) // of each rank's tokens
	for rank := range blocks {
		for b := range slices.Chunk(p.real(tokens, ranks, rank), block) {
			blocks[rank] = append(blocks[rank], extent{slices.Min(b), slices.Max(b)})
		}
	}
	work := make([][]int, ranks)
	for hop := range work {
		work[hop] = make([]int, ranks)
		for rank := range ranks {
			for _, q := range blocks[rank] {
				for _, k := range blocks[source(rank, hop, ranks)] {
					if q.greatest >= k.least {
						work[hop][rank]++
					}
				}
			}
		}
	}
	return work
}

// real returns the positions of a rank's tokens without padding.
func (p Placement) real(tokens, ranks, rank int) []int {
	return slices.DeleteFunc(p.Positions(tokens, ranks, rank), func(at int) bool { return at >= tokens })
}

// source returns the rank whose keys a rank has in a hop.
func source(rank, hop, ranks int) int { return ((rank-hop)%ranks + ranks) % ranks }

// Balance returns the fraction of a ring's time in which its ranks compute, if each hop takes as long as its slowest
// rank: Σ work / (ranks · Σ over hops of the most work). It is 1 if there is no work. For Contiguous with one block on
// each rank it is (P+1)/2P.
func Balance(work [][]int) float64 {
	sum, time := 0, 0
	for _, ranks := range work {
		for _, n := range ranks {
			sum += n
		}
		time += len(ranks) * slices.Max(ranks)
	}
	if time == 0 {
		return 1
	}
	return float64(sum) / float64(time)
}

// Visible returns the fraction of query-key pairs that a causal mask allows, of a rank's queries and the keys that it
// has in a hop. Pairs with padding count as masked. It panics if Positions does.
func (p Placement) Visible(tokens, ranks, rank, hop int) float64 {
	keys := p.real(tokens, ranks, source(rank, hop, ranks))
	slices.Sort(keys)
	seen := 0
	for _, q := range p.real(tokens, ranks, rank) {
		seen += sort.SearchInts(keys, q+1)
	}
	local := p.Local(tokens, ranks)
	return float64(seen) / float64(local*local)
}
