package schedule

// Level is what a rank holds from a time on.
type Level struct{ At, Held float64 }

// addLevel appends what is held from a time on. Of several levels at one time the last stays.
func addLevel(levels []Level, at, held float64) []Level {
	n := len(levels)
	switch {
	case n > 0 && levels[n-1].Held == held:
		return levels
	case n > 0 && levels[n-1].At == at:
		levels[n-1].Held = held
		return levels
	}
	return append(levels, Level{at, held})
}

// holding counts what a rank has stashed as it goes through its actions. It knows nothing of time: one action ends before
// the next one starts. What is held is computed from counts, so that nothing is left of it by rounding.
type holding struct {
	costs         Costs
	stages        []int
	whole, partly []int   // by stage of the list: micro-batches before and after InputGrad
	held, most    float64 // by them
}

func newHolding(stages []int, c Costs) *holding {
	return &holding{costs: c, stages: stages, whole: make([]int, len(stages)), partly: make([]int, len(stages))}
}

// start is called when an action starts.
func (h *holding) start(a Action) {
	if a.Pass == Forward {
		h.change(a.Stage, 1, 0)
	}
}

// end is called when it ends.
func (h *holding) end(a Action) {
	switch a.Pass {
	case Backward:
		h.change(a.Stage, -1, 0)
	case InputGrad:
		h.change(a.Stage, -1, 1)
	case WeightGrad:
		h.change(a.Stage, 0, -1)
	}
}

func (h *holding) change(stage, whole, partly int) {
	h.held = 0
	for i, s := range h.stages {
		if s == stage {
			h.whole[i] += whole
			h.partly[i] += partly
		}
		size := of(h.costs.Activation, s, 1)
		h.held += float64(h.whole[i])*size + float64(h.partly[i])*(size*of(h.costs.Kept, s, 1))
	}
	h.most = max(h.most, h.held)
}

// peak is the most that a rank with these stages holds if it does the actions in their order.
func peak(actions []Action, stages []int, c Costs) float64 {
	h := newHolding(stages, c)
	for _, a := range actions {
		h.start(a)
		h.end(a)
	}
	return h.most
}
