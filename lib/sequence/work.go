package sequence

import (
	"fmt"
	"slices"
	"sort"
)

// Work counts the block products of causal ring attention, by hop and rank: the pairs of a block of queries and a block
// of keys, of so many tokens each, of which any query sees any key. In hop h rank r has the keys of rank r−h. Padding
// sees nothing and is not seen. It panics where Positions does, and on blocks of less than one token.
func (p Placement) Work(tokens, ranks, block int) [][]int {
	if block < 1 {
		panic(fmt.Errorf("sequence: blocks of %d tokens: choose at least 1", block))
	}
	type extent struct{ least, greatest int }
	blocks := make([][]extent, ranks) // those of each rank's tokens
	for rank := range blocks {
		for run := range slices.Chunk(p.real(tokens, ranks, rank), block) {
			blocks[rank] = append(blocks[rank], extent{slices.Min(run), slices.Max(run)})
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

// source returns the rank whose keys another has in a hop: they go to the next rank each time.
func source(rank, hop, ranks int) int { return ((rank-hop)%ranks + ranks) % ranks }

// Balance returns the share of a ring's time in which its ranks work, if each hop lasts as long as its slowest rank:
// Σ work / (ranks · Σ over hops of the most work). It is 1 where there is no work. For Contiguous with one block a rank
// it is (P+1)/2P, since every hop but for the last rank's leaves ever more ranks without work.
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

// Visible returns which share of the pairs of a rank's queries and the keys that it has in a hop a causal mask lets
// through: who attends to whom. Padding counts as pairs of which nothing is seen. It panics where Positions does.
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
