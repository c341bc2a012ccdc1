package schedule

import "fmt"

// PipeDream is asynchronous 1F1B, with no flush: each stage is updated after each micro-batch's backward pass, so there is
// no bubble but at the start and the end of training (Narayanan et al. 2019, "PipeDream", §3.2). A micro-batch's two
// passes use the same weights, which are kept for it (§3.3): those that the stage has when the micro-batch comes
// ([Stash]), or, vertical, those of the version that the first stage used ([Vertical]).
func PipeDream(ranks, microbatches int, vertical bool) (Schedule, error) {
	kind, weights := KindPipeDream, Stash
	if vertical {
		kind, weights = KindPipeDreamVertical, Vertical
	}
	s, err := blank(kind, ranks, microbatches, 1, 3)
	if err != nil {
		return s, err
	}
	s.Every, s.Weights = 1, weights
	s.alternate()
	return s, nil
}

// TwoBW is PipeDream-2BW: asynchronous 1F1B with an update for each batch of every micro-batches, the gradients of which
// were taken at the weights before the newest (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training",
// §3.1): micro-batch i, in batch t = i/every, uses version max(t-1, 0), so W(t+1) = W(t) - v·∇f(W(t-1)). A rank never
// has more than two versions. That needs every >= ranks; microbatches must be a multiple of every.
func TwoBW(ranks, microbatches, every int) (Schedule, error) {
	s, err := blank(Kind2BW, ranks, microbatches, 1, 3)
	if err != nil {
		return s, err
	}
	if every < ranks {
		return Schedule{}, fmt.Errorf(
			"schedule %s: an update every %d micro-batches is too often for %d ranks with two versions of the weights: "+
				"use at least %d", Kind2BW, every, ranks, ranks)
	}
	if microbatches%every != 0 {
		return Schedule{}, fmt.Errorf("schedule %s: %d micro-batches are no multiple of the %d that an update takes: use %d",
			Kind2BW, microbatches, every, (microbatches/every+1)*every)
	}
	s.Every, s.Weights = every, Double
	s.alternate()
	return s, nil
}
