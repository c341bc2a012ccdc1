package sequence

import (
	"fmt"
	"slices"
	"sort"
)

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
