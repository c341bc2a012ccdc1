package pipeline

import "github.com/shardbook/shardbook/lib/step"

// ZBH1 is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §2.1,
// figure 3, top). Backward passes are split: the previous stage waits for the input gradient only, and weight gradients
// fill idle time. Rank r starts like 1F1B and computes weight gradients r micro-batches late, so no rank saves more
// micro-batches than there are ranks. If all passes take equally long, a rank is idle a third as long as in 1F1B: see
// [Bubble].
func ZBH1(ranks, microbatches int) (*step.Plan, error) {
	return split(KindZBH1, ranks, microbatches, func(r int) int { return ranks - r }, func(r int) int { return r })
}

// ZBH2 is the zero-bubble schedule with twice the memory of 1F1B (Qi et al. 2023, §2.2, figure 3, bottom). Rank r runs
// 2(ranks-r)-1 forward passes before its first backward pass, and computes weight gradients 2r micro-batches late. At
// most 2·ranks-1 micro-batches are saved. No rank is idle between its first and its last pass if all passes take
// equally long and there are at least 2·ranks-1 micro-batches.
func ZBH2(ranks, microbatches int) (*step.Plan, error) {
	return split(KindZBH2, ranks, microbatches,
		func(r int) int { return 2*(ranks-r) - 1 }, func(r int) int { return 2 * r })
}

// split builds a schedule with one stage per rank: ahead(rank) forward passes, then input gradient, weight gradient and
// forward pass in turn, with weight gradients late(rank) micro-batches after the input gradients.
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

// ZBV is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §6).
// Each rank has two stages, placed in a V: rank r has stages r and 2·ranks-1-r. The first backward pass thus starts on
// rank 0, where the last forward pass ended, and all ranks save the same: at most 2·ranks micro-batches of half-size
// stages.
//
// Rank r's list, as in the paper's figure:
//
//   - 2(ranks-r)-1 forward passes of the first chunk, then r times one of the second and one of the first chunk: rank r
//     has started 2·ranks-r-1 micro-batches by then;
//   - ranks-r times forward pass, input gradient and weight gradient of the second chunk;
//   - then in turn the same three passes of the first chunk and of the second;
//   - after the last forward pass the input gradients, which others wait for, with weight gradients in the gaps.
func ZBV(ranks, microbatches int) (*step.Plan, error) {
	b, err := blank(KindZBV, ranks, microbatches, 2, 3)
	if err != nil {
		return nil, err
	}
	const down, up = 0, 1 // the chunks
	for r := range ranks {
		// The order for enough micro-batches to fill the pipeline, without those that do not exist.
		total := max(microbatches, 2*ranks-1)
		next := [2]map[rune]int{{}, {}} // by chunk and pass: the next micro-batch
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
