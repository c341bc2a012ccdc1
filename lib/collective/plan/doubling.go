package plan

// doubling is the all-gather in ⌈log2 N⌉ rounds: what a rank has doubles with each.
//
// If N is a power of two, rank r exchanges all it has with rank r XOR 1, then
// r XOR 2, r XOR 4 and so on (recursive doubling: Thakur, Rabenseifner & Gropp 2005).
// Otherwise the ranks stand in a circle, and rank r, which has the chunks r to r+k-1,
// sends to rank r-k and receives from r+k, for k = 1, 2, 4, …; in the last round only
// what still lacks (Bruck, Ho, Kipnis, Upfal & Weathersby 1997, "Efficient algorithms
// for all-to-all communications in multiport message-passing systems"). Either way a
// rank receives each other chunk once.
//
// The mirror image of the first is recursive halving: the ranks exchange halves of
// their sums, then quarters, and so on (Rabenseifner 2004, "Optimization of
// collective reduction operations"). That of the second is a reduce-scatter in the
// least rounds and bytes for any N (Träff 2024, "Optimal, non-pipelined
// reduce-scatter and allreduce algorithms", has one like it), so that no ranks need
// to be folded away first, as Rabenseifner does, to leave a power of two.
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

// recursiveDoublingAllReduce exchanges whole vectors: in round k rank r and rank
// r XOR 2^k send each other what they have and both add. After log2 N rounds all
// have the sum, with n bytes sent in each: few rounds, many bytes. Where N is no
// power of two, the ranks above it first hand their data to a partner, and get the
// result from it in the end: two more rounds (Thakur, Rabenseifner & Gropp 2005).
//
// Both of a pair add the same two numbers, one in each order. Floating-point
// addition does not depend on that, so all ranks hold the same bits.
func (b *builder) recursiveDoublingAllReduce() {
	b.cut(1)
	power := ceilPower(b.Ranks)
	if power > b.Ranks {
		power /= 2
	}
	folded := b.Ranks - power
	// Of the first 2·folded ranks the even ones take part, for themselves and the
	// next odd one; i counts the ranks that take part.
	rank := func(i int) int {
		if i < folded {
			return 2 * i
		}
		return i + folded
	}
	var fold []move
	for i := range folded {
		fold = append(fold, move{2*i + 1, 2 * i, []int{0}})
	}
	if folded > 0 {
		b.reduce(schedule{fold})
	}
	for k := 1; k < power; k *= 2 {
		var round []move
		for i := range power {
			round = append(round, move{rank(i), rank(i ^ k), []int{0}})
		}
		b.reduce(schedule{round})
	}
	if folded > 0 {
		b.spread(schedule{fold}.mirror())
	}
}

func isPower(n int) bool { return n&(n-1) == 0 }
