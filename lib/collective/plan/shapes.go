package plan

import "math/bits"

// Schedules that spread data, one for each algorithm. Most are used as they are and mirrored.

// star is the naive way to spread data: the root, rank 0, sends to the others one after the other, a round each. carry
// says which chunks rank v is sent. N-1 rounds, and all bytes go through the root's port.
func star(ranks int, carry func(v, end int) []int) schedule {
	var s schedule
	for v := 1; v < ranks; v++ {
		s = append(s, []move{{0, v, carry(v, v+1)}})
	}
	return s
}

// starIn is the naive way to bring data together: the root receives from the others one after the other, in the order
// of their ranks, so a sum is ((x0 + x1) + x2) + …, with the root's own data first.
func starIn(ranks int, carry func(v, end int) []int) schedule {
	s := star(ranks, carry)
	for _, round := range s {
		round[0].from, round[0].to = round[0].to, round[0].from
	}
	return s
}

// The chunks of a message to or from rank v, which passes data on to the ranks up to
// end: the only chunk, all chunks, the chunk of v, or the chunks of v and the ranks behind it.

func one(_, _ int) []int { return []int{0} }

func full(chunks int) func(v, end int) []int {
	return func(int, int) []int { return arc(0, chunks, chunks) }
}

func own(v, _ int) []int { return []int{v} }

func subtree(v, end int) []int { return arc(v, end-v, end) }

// ring is the all-gather in which every rank has one neighbour it sends to and one it receives from: in round 0 each
// passes on its own chunk, and then always the one it has just received. After N-1 rounds all have everything. way is 1
// for sending to the next higher rank, -1 for the next lower.
//
// Its mirror image, a reduce-scatter, sends to the other neighbour; so an all-reduce takes one of each way, and uses
// each link in one direction. A rank sends 2(N-1)/N of the data in all, which is the least there is, in 2(N-1) rounds,
// which is many (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
func ring(ranks, way int) schedule {
	s := make(schedule, ranks-1)
	for k := range s {
		for r := range ranks {
			to, chunk := (r+way+ranks)%ranks, ((r-way*k)%ranks+ranks)%ranks
			s[k] = append(s[k], move{r, to, []int{chunk}})
		}
	}
	return s
}

// chain is the broadcast along a line of ranks from rank 0. The data has N chunks, and a rank sends one while it
// receives the next: 2N-2 rounds in all, and every rank but the last sends the data once (van de Geijn & Watts 1997,
// "SUMMA", use such a pipeline). The mirror image is a pipelined reduce.
func chain(ranks int) schedule {
	s := make(schedule, 2*ranks-2)
	for t := range s {
		for v := max(0, t-ranks+1); v <= min(t, ranks-2); v++ {
			s[t] = append(s[t], move{v, v + 1, []int{t - v}})
		}
	}
	return s
}

// bothWays is the all-gather by a ring that is used in both directions at once: a chunk goes half of the way round by
// the right, half by the left. That takes half the rounds of a ring with the same bytes a rank, so it is faster where a
// rank has a port for each neighbour, as on a torus (Jouppi et al. 2023, "TPU v4", has such links; see
// [Topology.Ports]). Where the number of other ranks is odd, the right goes one further.
//
// In the mirror image, a reduce-scatter, the sums of both halves of the ring meet at the chunk's own rank.
func bothWays(ranks int) schedule {
	right, left := ranks/2, (ranks-1)/2
	s := make(schedule, right)
	for k := range s {
		for r := range ranks {
			s[k] = append(s[k], move{r, (r + 1) % ranks, []int{(r - k + ranks) % ranks}})
		}
		for r := range ranks {
			if k < left {
				s[k] = append(s[k], move{r, (r - 1 + ranks) % ranks, []int{(r + k) % ranks}})
			}
		}
	}
	return s
}

// binomial spreads data from rank 0 along a binomial tree: first the root sends to the rank half of them away, and then
// each of the two does the same in its half, and so on. In every round twice as many ranks send, so ⌈log2 N⌉ rounds do.
// Rank v stands for the ranks from v up to end, and carry says which chunks it is sent: all of them in a broadcast,
// those of its subtree in a scatter.
//
// The mirror image is a reduce or a gather; in a reduce the sum of an inner rank is (own + nearest child) + next child
// … (Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH").
func binomial(ranks int, carry func(v, end int) []int) schedule {
	var s schedule
	for half := ceilPower(ranks) / 2; half >= 1; half /= 2 {
		var round []move
		for v := 0; v+half < ranks; v += 2 * half {
			round = append(round, move{v, v + half, carry(v+half, min(v+2*half, ranks))})
		}
		s = append(s, round)
	}
	return s
}

// ceilPower is the smallest power of two that is not below n.
func ceilPower(n int) int { return 1 << bits.Len(uint(n-1)) }

// doubling is the all-gather in ⌈log2 N⌉ rounds: what a rank has doubles with each.
//
// If N is a power of two, rank r exchanges all it has with rank r XOR 1, then r XOR 2, r XOR 4 and so on (recursive
// doubling: Thakur, Rabenseifner & Gropp 2005). Otherwise the ranks stand in a circle, and rank r, which has the chunks
// r to r+k-1, sends to rank r-k and receives from r+k, for k = 1, 2, 4, …; in the last round only what still lacks
// (Bruck, Ho, Kipnis, Upfal & Weathersby 1997, "Efficient algorithms for all-to-all communications in multiport
// message-passing systems"). Either way a rank receives each other chunk once.
//
// The mirror image of the first is recursive halving: the ranks exchange halves of their sums, then quarters, and so on
// (Rabenseifner 2004, "Optimization of collective reduction operations"). That of the second is a reduce-scatter in the
// least rounds and bytes for any N (Träff 2024, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", has
// one like it), so that no ranks need to be folded away first, as Rabenseifner does, to leave a power of two.
func doubling(ranks int) schedule {
	var s schedule
	for k := 1; k < ranks; k *= 2 {
		var round []move
		for r := range ranks {
			if isPower(ranks) {
				round = append(round, move{r, r ^ k, arc(r&^(k-1), k, ranks)})
			} else {
				round = append(round, move{r, (r - k + ranks) % ranks, arc(r, min(k, ranks-k), ranks)})
			}
		}
		s = append(s, round)
	}
	return s
}

func isPower(n int) bool { return n&(n-1) == 0 }
