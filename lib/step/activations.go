package step

// Activations counts the activations that a rank has saved for backward passes, in units of Costs.Activation. Call
// Start and End for each pass of the rank's list, in order.
type Activations struct {
	Held, Most       float64 // saved now, and the peak so far
	Count, MostCount int     // the same as a number of micro-batches, counted once per block

	costs Costs
	again map[[2]int]bool // blocks and micro-batches that are recomputed: their forward pass saves nothing
}

// NewActivations returns a counter for a rank's list.
func NewActivations(c Costs, list []Op) *Activations {
	s := &Activations{costs: c, again: map[[2]int]bool{}}
	for _, op := range list {
		if op.Kind == Recompute {
			s.again[[2]int{op.Block, op.Micro}] = true
		}
	}
	return s
}

// Start records that a pass starts.
func (s *Activations) Start(op Op) {
	if op.Kind == Recompute || op.Kind == Forward && !s.again[[2]int{op.Block, op.Micro}] {
		saved, _ := s.costs.Saved(op.Block)
		s.Held, s.Count = s.Held+saved, s.Count+1
		s.Most, s.MostCount = max(s.Most, s.Held), max(s.MostCount, s.Count)
	}
}

// End records that a pass has ended.
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
		s.Held = 0 // without rounding errors
	}
}

// PeakActivations returns, for each rank, the largest number of micro-batches whose activations it saves at a time,
// counted once per block. They are saved from the start of the forward pass, or of its recomputation, to the end of
// Backward or WeightGrad.
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
