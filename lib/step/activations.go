package step

// Activations counts what a rank saves for its backward passes, in Costs.Activation, as it goes through its passes. It
// knows nothing of time: one pass ends before the next one starts.
type Activations struct {
	Held, Most       float64 // now, and at most so far
	Count, MostCount int     // the same in micro-batches, each counted for each of the rank's blocks

	costs Costs
	again map[[2]int]bool // blocks and micro-batches of which nothing is saved before they are recomputed
}

// NewActivations returns one for a rank. What its list recomputes is not saved in its forward pass.
func NewActivations(c Costs, list []Op) *Activations {
	s := &Activations{costs: c, again: map[[2]int]bool{}}
	for _, op := range list {
		if op.Kind == Recompute {
			s.again[[2]int{op.Block, op.Micro}] = true
		}
	}
	return s
}

// Start is called when an operation starts.
func (s *Activations) Start(op Op) {
	if op.Kind == Recompute || op.Kind == Forward && !s.again[[2]int{op.Block, op.Micro}] {
		saved, _ := s.costs.Saved(op.Block)
		s.Held, s.Count = s.Held+saved, s.Count+1
		s.Most, s.MostCount = max(s.Most, s.Held), max(s.MostCount, s.Count)
	}
}

// End is called when it ends.
func (s *Activations) End(op Op) {
	saved, kept := s.costs.Saved(op.Block)
	switch op.Kind {
	case Backward:
		s.Held, s.Count = s.Held-saved, s.Count-1
	case InputGrad:
		s.Held -= saved - kept
	case WeightGrad:
		s.Held, s.Count = s.Held-kept, s.Count-1
	}
	if s.Count == 0 {
		s.Held = 0 // nothing is left by rounding
	}
}

// PeakActivations returns, for each rank, the largest number of micro-batches that it has saved at a time, each
// counted once for each of the rank's blocks: from the start of the forward pass, or of its recomputation, to the end
// of Backward or WeightGrad.
func (p *Plan) PeakActivations() []int {
	peaks := make([]int, len(p.Ranks))
	for r, list := range p.Ranks {
		s := NewActivations(Costs{}, list)
		for _, op := range list {
			if op.Kind.Pass() && op.Kind != Update {
				s.Start(op)
				s.End(op)
			}
		}
		peaks[r] = s.MostCount
	}
	return peaks
}
