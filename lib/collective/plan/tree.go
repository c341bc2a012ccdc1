package plan

// binomial spreads data from rank 0 along a binomial tree: first the root sends to
// the rank half of them away, and then each of the two does the same in its half,
// and so on. In every round twice as many ranks send, so ⌈log2 N⌉ rounds do. Rank v
// stands for the ranks from v up to end, and carry says which chunks it is sent: all
// of them in a broadcast, those of its subtree in a scatter.
//
// The mirror image is a reduce or a gather; in a reduce the sum of an inner rank is
// (own + nearest child) + next child … (Thakur, Rabenseifner & Gropp 2005,
// "Optimization of collective communication operations in MPICH").
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
func ceilPower(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}
