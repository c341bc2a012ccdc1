package plan

import "slices"

// block is what one rank has for another.
type block struct{ origin, target int }

// hop is the way of a block in one round.
type hop struct {
	from, to int
	block    block
}

// pairwise is the all-to-all with one partner a round: in round k rank r sends to
// r+k and receives from r-k. Every block goes straight to its target; N-1 rounds.
func pairwise(ranks int) [][]hop {
	s := make([][]hop, ranks-1)
	for k := range s {
		for r := range ranks {
			to := (r + k + 1) % ranks
			s[k] = append(s[k], hop{r, to, block{r, to}})
		}
	}
	return s
}

// directly is pairwise in one round.
func directly(ranks int) [][]hop {
	return [][]hop{slices.Concat(pairwise(ranks)...)}
}

// aroundTheRing uses the links of a ring alone: a block for the d-th rank to the right takes d hops, one in each of the
// first d rounds. A rank sends N-1 blocks, then N-2, and so on down to one: N/2 times the bytes of pairwise.
func aroundTheRing(ranks int) [][]hop {
	s := make([][]hop, ranks-1)
	for k := range s {
		for origin := range ranks {
			for d := k + 1; d < ranks; d++ {
				from, to := (origin+k)%ranks, (origin+k+1)%ranks
				s[k] = append(s[k], hop{from, to, block{origin, (origin + d) % ranks}})
			}
		}
	}
	return s
}

// bruck takes ⌈log2 N⌉ rounds: a block for the d-th rank to the right moves by 2^k in round k if that bit of d is set.
// So a rank sends about half of the data in each round, in one message (Bruck et al. 1997): best for short blocks.
func bruck(ranks int) [][]hop {
	var s [][]hop
	for k := 1; k < ranks; k *= 2 {
		var round []hop
		for origin := range ranks {
			for d := 1; d < ranks; d++ {
				if d&k != 0 {
					from := origin + d&(k-1)
					round = append(round, hop{from % ranks, (from + k) % ranks, block{origin, (origin + d) % ranks}})
				}
			}
		}
		s = append(s, round)
	}
	return s
}

// route writes an all-to-all in which blocks take the hops. A block that is not yet at its target waits in a scratch
// slot, which is free for others one round after it was sent on.
func (b *builder) route(rounds [][]hop) {
	n := b.Ranks
	b.cut(n)
	at := map[block]int{} // the slot where a block is, after its first hop
	free := make([][]int, n)
	unused := make([]int, n)
	for r := range n {
		unused[r] = 2 * n
		b.add(r, Step{Action: Copy, Chunk: r, Slot: n + r, From: r}) // its block for itself
	}
	for round, hops := range rounds {
		var left []hop // hops out of scratch slots
		var slots []int
		for _, h := range hops {
			slot, moved := at[h.block]
			if !moved {
				slot = h.block.target
			} else {
				left, slots = append(left, h), append(slots, slot)
			}
			into := n + h.block.origin
			if h.to != h.block.target {
				if last := len(free[h.to]) - 1; last >= 0 {
					into, free[h.to] = free[h.to][last], free[h.to][:last]
				} else {
					into = unused[h.to]
					unused[h.to]++
				}
			}
			at[h.block] = into
			b.add(h.from, Step{Round: round, Action: Send, Peer: h.to, Chunk: h.block.target, Slot: slot})
			b.add(h.to, Step{Round: round, Action: Receive, Peer: h.from, Chunk: h.block.target, Slot: into})
		}
		for i, h := range left {
			free[h.from] = append(free[h.from], slots[i])
		}
	}
}
