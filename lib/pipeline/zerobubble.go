package pipeline

import "github.com/shardbook/shardbook/lib/step"

// ZBH1 is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §2.1,
// figure 3, top). The backward pass is split: the stage before waits for the gradient of the input only, and the
// gradient of the weights fills what would be idle. Rank r begins like 1F1B and does its weight gradients r
// micro-batches late, so that no rank saves more than as many micro-batches as there are ranks. With passes that take
// equally long, a rank is idle a third of the time that it is in 1F1B, see [Bubble].
func ZBH1(ranks, microbatches int) (*step.Plan, error) {
	return split(KindZBH1, ranks, microbatches,
		func(r int) int { return ranks - r }, func(r int) int { return r })
}

// ZBH2 is the zero-bubble schedule with twice the memory of 1F1B (Qi et al. 2023, §2.2, figure 3, bottom). Rank r goes
// forward with 2(ranks-r)-1 micro-batches before it first goes back, and does its weight gradients 2r micro-batches
// late: at most 2·ranks-1 micro-batches are saved, and no rank is ever idle between its first and its last pass if all
// passes take equally long and there are at least 2·ranks-1 micro-batches.
func ZBH2(ranks, microbatches int) (*step.Plan, error) {
	return split(KindZBH2, ranks, microbatches,
		func(r int) int { return 2*(ranks-r) - 1 }, func(r int) int { return 2 * r })
}

// split writes a schedule of one stage a rank: ahead(rank) forward passes, then input gradient, weight gradient and
// forward pass in turn, the weight gradients late(rank) micro-batches behind the input gradients.
func split(kind Kind, ranks, microbatches int, ahead, late func(rank int) int) (*step.Plan, error) {
	b, err := blank(kind, ranks, microbatches, 1, 3)
	if err != nil {
		return nil, err
	}
	for r := range ranks {
		for m := range min(ahead(r), microbatches) {
			b.do(r, step.Forward, r, m)
		}
		for m := range microbatches + late(r) {
			if m < microbatches {
				b.do(r, step.InputGrad, r, m)
			}
			if w := m - late(r); w >= 0 {
				b.do(r, step.WeightGrad, r, w)
			}
			if f := m + ahead(r); f < microbatches {
				b.do(r, step.Forward, r, f)
			}
		}
	}
	return b.flush(), nil
}

// ZBV is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §6). The
// model has two stages a rank, placed in a V: down the ranks and up again, rank r having stages r and 2·ranks-1-r. So
// the first gradient starts where the last forward pass ended, on rank 0, and all ranks save the same: at most 2·ranks
// of the half-size stages.
//
// Rank r's list, as in the paper's figure:
//   - 2(ranks-r)-1 micro-batches go down, then r times one goes up and one down: rank r has started 2·ranks-r-1 by
//     then;
//   - ranks-r times one goes up and back at once, with its weight gradient;
//   - then in turn: one down, back out of the lower chunk with its weight gradient, one up, back with its weight
//     gradient;
//   - when none is left to go down, the input gradients come first, which others wait for, and weight gradients fill
//     in.
func ZBV(ranks, microbatches int) (*step.Plan, error) {
	b, err := blank(KindZBV, ranks, microbatches, 2, 3)
	if err != nil {
		return nil, err
	}
	const down, up = 0, 1 // the chunks
	for r := range ranks {
		// The order is that of enough micro-batches to fill the pipeline; those that are not there are left out.
		total := max(microbatches, 2*ranks-1)
		next := [2]map[rune]int{{}, {}} // of each chunk, each pass takes the next micro-batch
		do := func(times, chunk int, passes string) {
			for range times {
				for _, pass := range passes {
					m := next[chunk][pass]
					if next[chunk][pass]++; m < microbatches {
						b.do(r, step.Kind(pass), []int{r, 2*ranks - 1 - r}[chunk], m)
					}
				}
			}
		}
		do(2*(ranks-r)-1, down, "F")
		for range r {
			do(1, up, "F")
			do(1, down, "F")
		}
		do(ranks-r, up, "FIW")
		for next[up]['F'] < total {
			do(1, down, "FIW")
			do(1, up, "FIW")
		}
		for range r {
			do(1, down, "I")
			do(1, up, "I")
		}
		do(ranks-r, down, "IW")
		do(r, up, "W")
		do(r, down, "W")
	}
	return b.flush(), nil
}
