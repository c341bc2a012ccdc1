package schedule

import "fmt"

// Interleaved is 1F1B with several stages on a rank: stage s is on rank s mod ranks, so that a micro-batch passes each
// rank chunks times, and the bubble is chunks times smaller (Narayanan et al. 2021, "Efficient Large-Scale Language Model
// Training on GPU Clusters", §2.2.2). Micro-batches go in groups of one for each rank through all chunks, so their number
// must be a multiple of ranks. With one chunk it is 1F1B, with any number.
func Interleaved(ranks, microbatches, chunks int) (Schedule, error) {
	s, err := blank(KindInterleaved, ranks, microbatches, chunks, 2)
	if err != nil {
		return s, err
	}
	if chunks == 1 {
		s.alternate()
		s.flush()
		return s, nil
	}
	if microbatches%ranks != 0 {
		below := microbatches / ranks * ranks
		would := fmt.Sprintf("%d or %d", below, below+ranks)
		if below == 0 {
			would = fmt.Sprint(ranks)
		}
		return Schedule{}, fmt.Errorf("schedule %s: %d micro-batches are no multiple of %d ranks: use %s",
			KindInterleaved, microbatches, ranks, would)
	}
	for r := range ranks {
		// The first backward pass is of the last stage for micro-batch 0, which has to go through chunks-1 rounds of a
		// group, and to the last rank and back.
		ahead := (chunks-1)*ranks + 2*(ranks-r-1)
		forward, backward := s.looped(r, Forward), s.looped(r, Backward)
		ahead = min(ahead, len(forward))
		s.Ranks[r] = append(s.Ranks[r], forward[:ahead]...)
		for i, b := range backward {
			if i+ahead < len(forward) {
				s.Ranks[r] = append(s.Ranks[r], forward[i+ahead])
			}
			s.Ranks[r] = append(s.Ranks[r], b)
		}
	}
	s.flush()
	return s, nil
}

// looped returns a rank's passes of one kind, depth first: a group of as many micro-batches as ranks goes through all
// chunks of the rank, then the next group; backward through the chunks from the last. The last group may be smaller.
func (s *Schedule) looped(rank int, pass Pass) (order []Action) {
	ranks := len(s.Ranks)
	chunks := s.Stages / ranks
	for first := 0; first < s.Microbatches; first += ranks {
		for c := range chunks {
			if pass != Forward {
				c = chunks - 1 - c
			}
			for m := first; m < min(first+ranks, s.Microbatches); m++ {
				order = append(order, Action{pass, c*ranks + rank, m})
			}
		}
	}
	return order
}
