package schedule

// BreadthFirst has stage s on rank s mod ranks, and sends all micro-batches through one chunk before the next chunk
// begins, forward and then back (Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism", §4). A chunk's weights are
// needed, and its gradients complete, once in a step, which goes well with sharded data parallelism.
func BreadthFirst(ranks, microbatches, chunks int) (Schedule, error) {
	s, err := blank(KindBreadthFirst, ranks, microbatches, chunks, 2)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		for c := range chunks {
			for m := range microbatches {
				s.do(r, Forward, c*ranks+r, m)
			}
		}
		for c := range chunks {
			for m := range microbatches {
				s.do(r, Backward, (chunks-1-c)*ranks+r, m)
			}
		}
	}
	s.flush()
	return s, nil
}

// Looped has the stages where [Interleaved] has them, and goes depth first: micro-batches go in groups of one for each
// rank through all chunks. All forward passes come before all backward passes, which go from the last chunk to the first.
// It takes any number of micro-batches; the last group may be smaller.
func Looped(ranks, microbatches, chunks int) (Schedule, error) {
	s, err := blank(KindLooped, ranks, microbatches, chunks, 2)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		s.Ranks[r] = append(s.looped(r, Forward), s.looped(r, Backward)...)
	}
	s.flush()
	return s, nil
}
