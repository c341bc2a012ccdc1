package step

// Activations counts what a rank saves for its backward passes, in Costs.Activation, as it goes through its passes. It
// knows nothing of time: one pass ends before the next one starts. What is held is computed from counts, so that
// nothing is left of it by rounding.
type Activations struct {
	Held, Most       float64 // now, and at most so far
	Count, MostCount int     // the same in micro-batches, each counted for each of the rank's blocks

	costs         Costs
	blocks        []int
	whole, partly []int           // by block of the list: micro-batches before and after InputGrad
	again         map[[2]int]bool // blocks and micro-batches of which nothing is saved before they are recomputed
}

// NewActivations returns one for a rank with these blocks. What the list recomputes is not saved in its forward pass.
func NewActivations(c Costs, blocks []int, list []Op) *Activations {
	s := &Activations{costs: c, blocks: blocks, whole: make([]int, len(blocks)), partly: make([]int, len(blocks)),
		again: map[[2]int]bool{}}
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
		s.change(op.Block, 1, 0)
	}
}

// End is called when it ends.
func (s *Activations) End(op Op) {
	switch op.Kind {
	case Backward:
		s.change(op.Block, -1, 0)
	case InputGrad:
		s.change(op.Block, -1, 1)
	case WeightGrad:
		s.change(op.Block, 0, -1)
	}
}

func (s *Activations) change(block, whole, partly int) {
	s.Held = 0
	for i, b := range s.blocks {
		if b == block {
			s.whole[i] += whole
			s.partly[i] += partly
		}
		saved, kept := s.costs.Saved(b)
		s.Held += float64(s.whole[i])*saved + float64(s.partly[i])*kept
	}
	s.Count += whole + partly
	s.Most, s.MostCount = max(s.Most, s.Held), max(s.MostCount, s.Count)
}

// PeakActivations returns, for each rank, the largest number of micro-batches that it has saved at a time, each
// counted once for each of the rank's blocks: from the start of the forward pass, or of its recomputation, to the end
// of Backward or WeightGrad.
func (p *Plan) PeakActivations() []int {
	peaks := make([]int, len(p.Ranks))
	for r, list := range p.Ranks {
		s := NewActivations(Costs{}, nil, list)
		for _, op := range list {
			s.Start(op)
			s.End(op)
		}
		peaks[r] = s.MostCount
	}
	return peaks
}
