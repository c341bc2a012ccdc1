package schedule

// greedy is a rule at work.
type greedy struct {
	rule
	*Schedule
	first   []float64 // by rank: when it starts
	shares  []float64 // what it stashes of one micro-batch
	free    []float64 // when it has done what it was given
	holding []*holding
	// By stage: when the passes ended of the micro-batches that have been through them.
	forwards, inputs, weights [][]float64
}

// schedule carries the rule out. It returns false if the room does not suffice for a micro-batch.
func (r rule) schedule(frame Schedule) (candidate, bool) {
	frame.Ranks = make([][]Action, len(r.stages))
	ranks, stages := len(r.stages), frame.Stages
	g := &greedy{rule: r, Schedule: &frame, shares: r.placement.shares(r.costs),
		first: make([]float64, ranks), free: make([]float64, ranks),
		forwards: make([][]float64, stages), inputs: make([][]float64, stages), weights: make([][]float64, stages)}
	for _, stages := range r.stages {
		g.holding = append(g.holding, newHolding(stages, r.costs))
	}
	choices, known := make([]*choice, len(r.stages)), make([]bool, len(r.stages))
	for left := frame.Stages * frame.Microbatches; left > 0; {
		rank := -1
		for q, c := range choices {
			if !known[q] {
				c = g.choose(q)
				choices[q], known[q] = c, true
			}
			if c != nil && (rank < 0 || c.start < choices[rank].start) {
				rank = q
			}
		}
		if rank < 0 {
			return candidate{}, false
		}
		c := *choices[rank]
		g.commit(rank, c)
		known[rank] = false
		switch {
		case c.Pass == Forward && c.Stage < frame.Stages-1:
			known[r.rank[c.Stage+1]] = false
		case (c.Pass == InputGrad || c.Pass == Backward) && c.Stage > 0:
			known[r.rank[c.Stage-1]] = false
		}
		if c.Pass == WeightGrad || c.Pass == Backward {
			left--
		}
	}
	frame.flush()
	return candidate{frame, g.rate()}, true
}

// rate is the score of what was done: nothing is left to wait for but the updates at the end.
func (g *greedy) rate() (s score) {
	for r, stages := range g.stages {
		span := g.free[r] - g.first[r]
		for _, stage := range stages {
			span += g.costs.Took(Action{Update, stage, 0})
		}
		s.step, s.spans = max(s.step, span), s.spans+span
	}
	return s
}

// choice is an action that a rank may do next, and when it could start.
type choice struct {
	Action
	start float64
	place int // of the stage among the rank's
}

// choose is what a rank does next: nil if there is nothing of which it is known when it can start.
func (g *greedy) choose(rank int) *choice {
	var candidates [3]choice // forward, backward and weight gradient
	var forward, back, weights *choice
	take := func(kind int, old **choice, pass Pass, stage, place, microbatch int, ready float64) {
		c := choice{Action{pass, stage, microbatch}, max(g.free[rank], ready), place}
		if *old == nil || g.prefers(c, **old) {
			candidates[kind] = c
			*old = &candidates[kind]
		}
	}
	for place, stage := range g.stages[rank] {
		f, i, w := g.forwards[stage], g.inputs[stage], g.weights[stage]
		if m := len(f); m < g.Microbatches {
			if ready, ok := g.arrives(g.forwards, stage-1, m, rank); ok && g.admits(rank, stage, m) {
				take(0, &forward, Forward, stage, place, m, ready)
			}
		}
		if m := len(i); m < len(f) {
			if ready, ok := g.arrives(g.inputs, stage+1, m, rank); ok {
				pass := InputGrad
				if !g.split {
					pass = Backward
				}
				take(1, &back, pass, stage, place, m, max(ready, f[m]))
			}
		}
		if m := len(w); g.split && m < len(i) {
			take(2, &weights, WeightGrad, stage, place, m, i[m])
		}
	}
	first, second := back, forward
	if g.forwardFirst {
		first, second = second, first
	}
	if first == nil || second != nil && second.start < first.start && !sameTime(second.start, first.start) {
		first = second
	}
	if first == nil || weights != nil && weights.start+g.patience*g.costs.Took(weights.Action) < first.start {
		return weights
	}
	return first
}

// prefers compares two actions with the same pass.
func (g *greedy) prefers(c, old choice) bool {
	if !sameTime(c.start, old.start) {
		return c.start < old.start
	}
	if c.Pass == Forward && g.deepFirst || c.Pass == WeightGrad {
		return c.place > old.place
	}
	return c.Microbatch < old.Microbatch || c.Microbatch == old.Microbatch && c.Pass != Forward && c.place > old.place
}

// arrives is when the output of a stage's pass is on a rank, given the ends of such passes; at the ends of the model there
// is none, and it is there.
func (g *greedy) arrives(ends [][]float64, stage, microbatch, rank int) (float64, bool) {
	if stage < 0 || stage == g.Stages {
		return 0, true
	}
	if microbatch >= len(ends[stage]) {
		return 0, false
	}
	link, err := g.costs.link(g.rank[stage], rank)
	return ends[stage][microbatch] + link, err == nil
}

// commit has a rank do an action.
func (g *greedy) commit(rank int, c choice) {
	if len(g.Ranks[rank]) == 0 {
		g.first[rank] = c.start
	}
	g.do(rank, c.Pass, c.Stage, c.Microbatch)
	g.holding[rank].start(c.Action)
	g.holding[rank].end(c.Action)
	end := c.start + g.costs.Took(c.Action)
	g.free[rank] = end
	if c.Pass == Forward {
		g.forwards[c.Stage] = append(g.forwards[c.Stage], end)
	}
	if c.Pass == InputGrad || c.Pass == Backward {
		g.inputs[c.Stage] = append(g.inputs[c.Stage], end)
	}
	if c.Pass == WeightGrad || c.Pass == Backward {
		g.weights[c.Stage] = append(g.weights[c.Stage], end)
	}
}

// admits tells whether a rank may stash another micro-batch of a stage: those that it has begun must still be able to end
// one after the other, the oldest first, each leaving its room to the next.
func (g *greedy) admits(rank, stage, microbatch int) bool {
	size := of(g.costs.Activation, stage, 1)
	left := g.room[rank] - g.holding[rank].held - size
	if left < -tolerance*g.room[rank] {
		return false
	}
	stages := g.stages[rank]
	if len(stages) == 1 || left >= g.shares[rank] {
		return true
	}
	oldest, newest := g.Microbatches, microbatch
	for _, s := range stages {
		oldest, newest = min(oldest, len(g.weights[s])), max(newest, len(g.forwards[s])-1)
	}
	for m := oldest; m <= newest; m++ {
		rest, held := 0.0, 0.0
		for _, s := range stages {
			size := of(g.costs.Activation, s, 1)
			switch begun := m < len(g.forwards[s]) || s == stage && m == microbatch; {
			case !begun:
				rest += size
			case m < len(g.weights[s]):
			case m < len(g.inputs[s]):
				held += size * of(g.costs.Kept, s, 1)
			default:
				held += size
			}
		}
		if rest > left+tolerance*g.room[rank] {
			return false
		}
		left += held
	}
	return true
}
