package plan

// star is the naive way to spread data: the root, rank 0, sends to the others one
// after the other, a round each. carry says which chunks rank v is sent. N-1 rounds,
// and all bytes go through the root's port.
func star(ranks int, carry func(v, end int) []int) schedule {
	var s schedule
	for v := 1; v < ranks; v++ {
		s = append(s, []move{{0, v, carry(v, v+1)}})
	}
	return s
}

// starIn is the naive way to bring data together: the root receives from the others
// one after the other, in the order of their ranks, so a sum is
// ((x0 + x1) + x2) + …, with the root's own data first.
func starIn(ranks int, carry func(v, end int) []int) schedule {
	s := star(ranks, carry)
	for _, round := range s {
		round[0].from, round[0].to = round[0].to, round[0].from
	}
	return s
}

// What a message to or from rank v carries, where v passes data on to the ranks up
// to end: all chunks, the chunk of v alone, or the chunks of v and those behind it.

func whole(chunks int) func(v, end int) []int {
	return func(int, int) []int { return arc(0, chunks, chunks) }
}

func own(v, _ int) []int { return []int{v} }

func subtree(v, end int) []int { return arc(v, end-v, end) }
