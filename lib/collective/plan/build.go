package plan

import "slices"

// move is one message: some chunks that one rank sends to another.
type move struct {
	from, to int
	chunks   []int
}

// schedule has the messages of each round.
type schedule [][]move

// mirror runs a schedule backwards in time, with each message the other way. What spread data from one rank to many now
// brings data from the many to the one: a broadcast becomes a reduce, a scatter a gather, and an all-gather a
// reduce-scatter, with the same rounds and bytes (Chan, Heimlich, Purkayastha & van de Geijn 2007, "Collective
// communication: theory, practice, and experience").
func (s schedule) mirror() schedule {
	m := make(schedule, 0, len(s))
	for _, round := range slices.Backward(s) {
		var back []move
		for _, v := range round {
			back = append(back, move{v.to, v.from, v.chunks})
		}
		m = append(m, back)
	}
	return m
}

// merge joins the messages of each round that have the same ends.
func (s schedule) merge() schedule {
	for i, round := range s {
		var merged []move
		place := map[[2]int]int{}
		for _, m := range round {
			ends := [2]int{m.from, m.to}
			at, seen := place[ends]
			if !seen {
				at = len(merged)
				place[ends] = at
				merged = append(merged, move{m.from, m.to, nil})
			}
			merged[at].chunks = append(merged[at].chunks, m.chunks...)
		}
		s[i] = merged
	}
	return s
}

// arc is count chunks of n, from begin on, going round the end.
func arc(begin, count, n int) []int {
	list := make([]int, count)
	for i := range list {
		list[i] = (begin + i) % n
	}
	return list
}

// builder writes a plan.
type builder struct {
	*Plan
	groups  groups
	partial map[[2]int]bool // rank, chunk: whether the rank keeps a partial sum aside
}

// cut sets how many chunks the data has.
func (b *builder) cut(chunks int) { b.Chunks, b.Slots = chunks, chunks }

// add appends a step to a rank's list.
func (b *builder) add(rank int, s Step) {
	b.Steps[rank] = append(b.Steps[rank], s)
	b.Slots = max(b.Slots, s.Slot+1)
	b.Rounds = max(b.Rounds, s.Round+1)
}

// fromRoot relabels a schedule made for root 0: rank v becomes the v-th from the
// plan's root on and, where parts belong to ranks, chunk v with it.
func (b *builder) fromRoot(s schedule) schedule {
	turned := make(schedule, len(s))
	for i, round := range s {
		for _, m := range round {
			t := move{(m.from + b.Root) % b.Ranks, (m.to + b.Root) % b.Ranks, m.chunks}
			if b.Op.parts() {
				t.chunks = nil
				for _, c := range m.chunks {
					t.chunks = append(t.chunks, (c+b.Root)%b.Ranks)
				}
			}
			turned[i] = append(turned[i], t)
		}
	}
	return turned
}

// place is the slot where a rank has its chunk. That is the chunk's own, except that in a Reduce only the root's data
// may change: the others keep sums aside, in slot Chunks+chunk, once they have any.
func (b *builder) place(rank, chunk int) int {
	if b.partial[[2]int{rank, chunk}] {
		return b.Chunks + chunk
	}
	return chunk
}

// setAside makes a rank of a Reduce keep a chunk aside from now on, and tells whether it did not do so before.
func (b *builder) setAside(rank, chunk int) bool {
	if b.Op != Reduce || rank == b.Root || b.partial[[2]int{rank, chunk}] {
		return false
	}
	if b.partial == nil {
		b.partial = map[[2]int]bool{}
	}
	b.partial[[2]int{rank, chunk}] = true
	return true
}

// spread appends a schedule whose messages replace what the receiver has.
func (b *builder) spread(s schedule) {
	for _, moves := range s {
		round := b.Rounds
		for _, m := range moves {
			for _, c := range m.chunks {
				b.add(m.from, Step{Round: round, Action: Send, Peer: m.to, Chunk: c, Slot: b.place(m.from, c)})
				b.setAside(m.to, c)
				b.add(m.to, Step{Round: round, Action: Receive, Peer: m.from, Chunk: c, Slot: b.place(m.to, c)})
			}
		}
	}
}

// reduce appends a schedule whose messages are added to what the receiver has.
func (b *builder) reduce(s schedule) {
	scratch := b.Chunks
	if b.Op == Reduce {
		scratch = 2 * b.Chunks
	}
	for _, moves := range s {
		round := b.Rounds
		sums := make([][]Step, b.Ranks)
		used := make([]int, b.Ranks)
		for _, m := range moves {
			for _, c := range m.chunks {
				b.add(m.from, Step{Round: round, Action: Send, Peer: m.to, Chunk: c, Slot: b.place(m.from, c)})
				var sum Step
				if b.setAside(m.to, c) {
					sum = Step{Round: round, Action: Add, Chunk: c, Slot: b.place(m.to, c), From: c}
					b.add(m.to, Step{Round: round, Action: Receive, Peer: m.from, Chunk: c, Slot: sum.Slot})
				} else {
					sum = Step{Round: round, Action: Add, Chunk: c, Slot: b.place(m.to, c), From: scratch + used[m.to]}
					used[m.to]++
					b.add(m.to, Step{Round: round, Action: Receive, Peer: m.from, Chunk: c, Slot: sum.From})
				}
				sums[m.to] = append(sums[m.to], sum)
			}
		}
		for rank, list := range sums {
			for _, sum := range list {
				b.add(rank, sum)
			}
		}
	}
}
