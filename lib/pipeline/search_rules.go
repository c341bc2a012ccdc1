package pipeline

import (
	"math"

	"github.com/shardbook/shardbook/lib/step"
)

// rule is a list scheduler: whenever a rank is free it does what can start first, and of several such the one that the
// rule prefers. Forward passes keep to a limit of memory, and never take room without which a micro-batch that has
// begun could not end.
type rule struct {
	placement
	costs step.Costs
	room  []float64 // by rank: the most that it may hold
	// split has backward passes in two parts, so that the weights' part can wait.
	split bool
	// patience is the share of a weight gradient's time for which a rank waits for other work rather than begin one.
	patience float64
	// forwardFirst prefers a forward pass to a backward pass that could start as well.
	forwardFirst bool
	// deepFirst prefers a rank's last stage to its first, among forward passes; else micro-batches come in order.
	deepFirst bool
}

// rules are the ones that a search tries.
func rules(p placement, c step.Costs, limit float64) (all []rule) {
	shares := p.shares(c)
	ranks := len(shares)
	// Warm-ups as deep as 1F1B's, ZB-H2's and between, or as the memory allows.
	var rooms [][]float64
	for _, slope := range []float64{1, 1.5, 2, 3} {
		for _, more := range []float64{0, 1} {
			room := make([]float64, ranks)
			for r := range room {
				depth := math.Floor(slope*float64(ranks-1-r)) + 1 + more
				// a rank's stages are apart: its first waits for the whole way through all of them
				if len(p.stages[r]) > 1 {
					depth = math.Floor(slope*float64(ranks)) + more
				}
				room[r] = min(limit, max(1, depth)*shares[r])
			}
			rooms = append(rooms, room)
		}
	}
	free := make([]float64, ranks)
	for r := range free {
		free[r] = limit
	}
	rooms = append(rooms, free)
	for _, room := range rooms {
		for _, split := range []bool{true, false} {
			for _, patience := range []float64{0, 0.5, 1} {
				if !split && patience > 0 {
					continue
				}
				for bits := range 4 {
					if bits&2 != 0 && len(p.stages[0]) == 1 {
						continue
					}
					all = append(all, rule{p, c, room, split, patience, bits&1 != 0, bits&2 != 0})
				}
			}
		}
	}
	return all
}

// greedy is a rule at work.
type greedy struct {
	rule
	builder
	shares  []float64 // by rank: what it saves of one micro-batch
	began   []float64 // when it did so first
	free    []float64 // when it has done what it was given
	holding []*step.Activations
	// By stage: when the passes ended of the micro-batches that have been through them.
	forwards, inputs, weights [][]float64
}

// schedule carries the rule out, and says how long a step takes. It returns nil if the room does not suffice for a
// micro-batch.
func (r rule) schedule(frame builder) (_ *step.Plan, took float64) {
	ranks, stages := len(r.stages), len(frame.Blocks)
	p := *frame.Plan
	p.Ranks = make([][]step.Op, ranks)
	g := &greedy{rule: r, builder: builder{&p}, shares: r.placement.shares(r.costs),
		began: make([]float64, ranks), free: make([]float64, ranks),
		forwards: make([][]float64, stages), inputs: make([][]float64, stages), weights: make([][]float64, stages)}
	for range r.stages {
		g.holding = append(g.holding, step.NewActivations(r.costs, nil))
	}
	choices, known := make([]*choice, len(r.stages)), make([]bool, len(r.stages))
	for left := stages * p.Micro; left > 0; {
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
			return nil, 0
		}
		c := *choices[rank]
		g.commit(rank, c)
		known[rank] = false
		switch {
		case c.Kind == step.Forward && c.Block < stages-1:
			known[r.rank[c.Block+1]] = false
		case (c.Kind == step.InputGrad || c.Kind == step.Backward) && c.Block > 0:
			known[r.rank[c.Block-1]] = false
		}
		if c.Kind == step.WeightGrad || c.Kind == step.Backward {
			left--
		}
	}
	for rank, stages := range g.stages {
		for _, s := range stages {
			g.free[rank] += g.costs.Time(step.Op{Kind: step.Update, Unit: s})
		}
		took = max(took, g.free[rank]-g.began[rank])
	}
	return g.flush(), took
}

// choice is an action that a rank may do next, and when it could start.
type choice struct {
	step.Op
	start float64
	place int // of the stage among the rank's
}

// choose is what a rank does next: nil if there is nothing of which it is known when it can start.
func (g *greedy) choose(rank int) *choice {
	var forward, back, weights *choice
	take := func(best **choice, pass step.Kind, stage, place, microbatch int, ready float64) {
		c := choice{step.Op{Kind: pass, Block: stage, Micro: microbatch}, max(g.free[rank], ready), place}
		if *best == nil || g.prefers(c, **best) {
			*best = &c
		}
	}
	for place, stage := range g.stages[rank] {
		f, i, w := g.forwards[stage], g.inputs[stage], g.weights[stage]
		if m := len(f); m < g.Micro {
			if ready, ok := g.arrives(g.forwards, stage-1, m, rank); ok && g.admits(rank, stage, m) {
				take(&forward, step.Forward, stage, place, m, ready)
			}
		}
		if m := len(i); m < len(f) {
			if ready, ok := g.arrives(g.inputs, stage+1, m, rank); ok {
				pass := step.InputGrad
				if !g.split {
					pass = step.Backward
				}
				take(&back, pass, stage, place, m, max(ready, f[m]))
			}
		}
		if m := len(w); g.split && m < len(i) {
			take(&weights, step.WeightGrad, stage, place, m, i[m])
		}
	}
	first, second := back, forward
	if g.forwardFirst {
		first, second = second, first
	}
	if first == nil || second != nil && second.start < first.start && !sameTime(second.start, first.start) {
		first = second
	}
	if first == nil || weights != nil && weights.start+g.patience*g.costs.Time(weights.Op) < first.start {
		return weights
	}
	return first
}

// prefers compares two actions with the same pass.
func (g *greedy) prefers(c, old choice) bool {
	if !sameTime(c.start, old.start) {
		return c.start < old.start
	}
	if c.Kind == step.Forward && g.deepFirst || c.Kind == step.WeightGrad {
		return c.place > old.place
	}
	return c.Micro < old.Micro || c.Micro == old.Micro && c.Kind != step.Forward && c.place > old.place
}

// arrives is when the output of a stage's pass is on a rank, given the ends of such passes; at the ends of the model
// there is none, and it is there.
func (g *greedy) arrives(ends [][]float64, stage, microbatch, rank int) (float64, bool) {
	if stage < 0 || stage == len(g.Blocks) {
		return 0, true
	}
	if microbatch >= len(ends[stage]) {
		return 0, false
	}
	link, err := g.costs.Between(g.rank[stage], rank)
	return ends[stage][microbatch] + link, err == nil
}

// commit has a rank do an action.
func (g *greedy) commit(rank int, c choice) {
	if len(g.Ranks[rank]) == 0 {
		g.began[rank] = c.start
	}
	g.do(rank, c.Kind, c.Block, c.Micro)
	g.holding[rank].Start(c.Op)
	g.holding[rank].End(c.Op)
	end := c.start + g.costs.Time(c.Op)
	g.free[rank] = end
	if c.Kind == step.Forward {
		g.forwards[c.Block] = append(g.forwards[c.Block], end)
	}
	if c.Kind == step.InputGrad || c.Kind == step.Backward {
		g.inputs[c.Block] = append(g.inputs[c.Block], end)
	}
	if c.Kind == step.WeightGrad || c.Kind == step.Backward {
		g.weights[c.Block] = append(g.weights[c.Block], end)
	}
}

// admits tells whether a rank may stash another micro-batch of a stage: those that it has begun must still be able to
// end one after the other, the oldest first, each leaving its room to the next.
func (g *greedy) admits(rank, stage, microbatch int) bool {
	size, _ := g.costs.Saved(stage)
	left := g.room[rank] - g.holding[rank].Held - size
	if left < -tolerance*g.room[rank] {
		return false
	}
	stages := g.stages[rank]
	if len(stages) == 1 || left >= g.shares[rank] {
		return true
	}
	oldest, newest := g.Micro, microbatch
	for _, s := range stages {
		oldest, newest = min(oldest, len(g.weights[s])), max(newest, len(g.forwards[s])-1)
	}
	for m := oldest; m <= newest; m++ {
		rest, held := 0.0, 0.0
		for _, s := range stages {
			size, kept := g.costs.Saved(s)
			switch begun := m < len(g.forwards[s]) || s == stage && m == microbatch; {
			case !begun:
				rest += size
			case m < len(g.weights[s]):
			case m < len(g.inputs[s]):
				held += kept
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
