package schedule

// OneFOneB is 1F1B with a flush: after a start of forward passes, each rank goes back with a micro-batch for each that it
// goes forward with (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", §2.2.1,
// there PipeDream-flush). It takes as long as [GPipe], but rank r stashes at most min(ranks-r, microbatches) micro-batches.
func OneFOneB(ranks, microbatches int) (Schedule, error) {
	s, err := blank(Kind1F1B, ranks, microbatches, 1, 2)
	if err != nil {
		return s, err
	}
	s.alternate()
	s.flush()
	return s, nil
}

// alternate fills the lists with one stage a rank in the order of 1F1B. After the backward pass of every Every-th
// micro-batch the stage is updated, unless that is the flush.
func (s *Schedule) alternate() {
	for r := range s.Ranks {
		ahead := len(s.Ranks) - r - 1 // forward passes before the first pair
		for m := range min(ahead, s.Microbatches) {
			s.do(r, Forward, r, m)
		}
		for m := range s.Microbatches {
			if m+ahead < s.Microbatches {
				s.do(r, Forward, r, m+ahead)
			}
			s.do(r, Backward, r, m)
			if s.Weights != Flush && (m+1)%s.Every == 0 {
				s.do(r, Update, r, m)
			}
		}
	}
}
