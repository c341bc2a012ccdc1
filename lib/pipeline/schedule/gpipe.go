package schedule

// Naive is model parallelism with no pipelining: one micro-batch goes forward through all stages and back, then the
// next. One rank works at a time (Huang et al. 2019, "GPipe", figure 2b).
func Naive(ranks, microbatches int) (Schedule, error) {
	s, err := blank(KindNaive, ranks, microbatches, 1, 2)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		for m := range microbatches {
			s.do(r, Forward, r, m)
			s.do(r, Backward, r, m)
		}
	}
	s.flush()
	return s, nil
}

// GPipe is all forward passes, then all backward passes (Huang et al. 2019, "GPipe", §2.3, figure 2c). The paper's
// figure goes back through the micro-batches in descending order; here it is ascending, as in every schedule of this
// package, so that all sum a weight's gradients in the same order. That changes no time.
func GPipe(ranks, microbatches int) (Schedule, error) {
	s, err := blank(KindGPipe, ranks, microbatches, 1, 2)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		for _, pass := range []Pass{Forward, Backward} {
			for m := range microbatches {
				s.do(r, pass, r, m)
			}
		}
	}
	s.flush()
	return s, nil
}
