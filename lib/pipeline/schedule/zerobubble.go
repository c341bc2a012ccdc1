package schedule

// ZBH1 is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §2.1,
// figure 3, top). The backward pass is split: the stage before waits for the gradient of the input only, and the gradient of
// the weights fills what would be idle. Rank r begins like 1F1B and does its weight gradients r micro-batches late, so
// that no rank stashes more than as many micro-batches as there are ranks. With passes that take equally long, a rank is
// idle a third of the time that it is in 1F1B, see [Bubble].
func ZBH1(ranks, microbatches int) (Schedule, error) {
	return split(KindZBH1, ranks, microbatches,
		func(r int) int { return ranks - r }, func(r int) int { return r })
}

// ZBH2 is the zero-bubble schedule with twice the memory of 1F1B (Qi et al. 2023, §2.2, figure 3, bottom). Rank r goes forward
// with 2(ranks-r)-1 micro-batches before it first goes back, and does its weight gradients 2r micro-batches late: at most
// 2·ranks-1 micro-batches are stashed, and no rank is ever idle between its first and its last pass if all passes take
// equally long and there are at least 2·ranks-1 micro-batches.
func ZBH2(ranks, microbatches int) (Schedule, error) {
	return split(KindZBH2, ranks, microbatches,
		func(r int) int { return 2*(ranks-r) - 1 }, func(r int) int { return 2 * r })
}

// split writes a schedule of one stage a rank: ahead(rank) forward passes, then input gradient, weight gradient and
// forward pass in turn, the weight gradients late(rank) micro-batches behind the input gradients.
func split(kind Kind, ranks, microbatches int, ahead, late func(rank int) int) (Schedule, error) {
	s, err := blank(kind, ranks, microbatches, 1, 3)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		for m := range min(ahead(r), microbatches) {
			s.do(r, Forward, r, m)
		}
		for m := range microbatches + late(r) {
			if m < microbatches {
				s.do(r, InputGrad, r, m)
			}
			if w := m - late(r); w >= 0 {
				s.do(r, WeightGrad, r, w)
			}
			if f := m + ahead(r); f < microbatches {
				s.do(r, Forward, r, f)
			}
		}
	}
	s.flush()
	return s, nil
}
