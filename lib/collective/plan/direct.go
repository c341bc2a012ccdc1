package plan

// allAtOnce is the all-gather of one round: each rank sends its chunk to all others,
// to the next one first, so that no rank is everyone's first. N(N-1) messages.
func allAtOnce(ranks int) schedule {
	var round []move
	for r := range ranks {
		for k := 1; k < ranks; k++ {
			round = append(round, move{r, (r + k) % ranks, []int{r}})
		}
	}
	return schedule{round}
}

// oneShotAllReduce sends all data to all ranks, and each adds for itself: one round, and N-1 times the data in and out
// of every rank. It is the fastest for short vectors, and what GPUs of one host do over shared memory.
func (b *builder) oneShotAllReduce() {
	b.cut(1)
	b.oneShot(func(int) int { return 0 })
}

// oneShotReduceScatter sends each rank its chunk, and that rank adds.
func (b *builder) oneShotReduceScatter() {
	b.cut(b.Ranks)
	b.oneShot(func(rank int) int { return rank })
}

// oneShot gives every rank all ranks' contributions to the chunk that it is to have, and has it add them in the order
// of the ranks: ((x0 + x1) + x2) + …. That order is the same everywhere, and so are the bits. A rank that began with
// its own would differ from the others by rounding.
func (b *builder) oneShot(chunk func(rank int) int) {
	if b.Ranks == 1 {
		return
	}
	for r := range b.Ranks {
		own := chunk(r)
		slot := func(rank int) int { // where rank r has the contribution of a rank
			switch {
			case rank == r:
				return own
			case rank < r:
				return b.Chunks + rank
			}
			return b.Chunks + rank - 1
		}
		for k := 1; k < b.Ranks; k++ {
			to, from := (r+k)%b.Ranks, (r-k+b.Ranks)%b.Ranks
			b.add(r, Step{Action: Send, Peer: to, Chunk: chunk(to), Slot: chunk(to)})
			b.add(r, Step{Action: Receive, Peer: from, Chunk: own, Slot: slot(from)})
		}
		for rank := 1; rank < b.Ranks; rank++ {
			b.add(r, Step{Action: Add, Chunk: own, Slot: slot(0), From: slot(rank)})
		}
		if r != 0 {
			b.add(r, Step{Action: Copy, Chunk: own, Slot: own, From: slot(0)})
		}
	}
}

// recursiveDoublingAllReduce exchanges whole vectors: in round k rank r and rank r XOR 2^k send each other what they
// have and both add. After log2 N rounds all have the sum, with n bytes sent in each: few rounds, many bytes. Where N
// is no power of two, the ranks above it first hand their data to a partner, and get the result from it in the end: two
// more rounds (Thakur, Rabenseifner & Gropp 2005).
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
