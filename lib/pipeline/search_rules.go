package pipeline

import (
	"math"

	"github.com/shardbook/shardbook/lib/step"
)

// rule is a list scheduler: a free rank does next what can start first, and what the rule prefers if there are several.
// Forward passes keep within a limit of memory, and leave room for the micro-batches that have begun to finish.
type rule struct {
	placement
	costs step.Costs
	room  []float64 // memory limit by rank
	// split divides backward passes into two parts, so that the weight gradients can wait.
	split bool
	// patience is the fraction of a weight gradient's time for which a rank waits for other work before it starts one.
	patience float64
	// forwardFirst prefers a forward pass to a backward pass that could start as well.
	forwardFirst bool
	// deepFirst prefers, among forward passes, a rank's last stage to its first; otherwise micro-batches come in order.
	deepFirst bool
}

// rules returns the rules that a search tries.
func rules(p placement, c step.Costs, limit float64) (all []rule) {
	perMicro := p.perMicro(c)
	ranks := len(perMicro)
	// warm-ups as deep as those of 1F1B, of ZB-H2 and between, or as deep as the memory allows
	var rooms [][]float64
	for _, slope := range []float64{1, 1.5, 2, 3} {
		for _, more := range []float64{0, 1} {
			room := make([]float64, ranks)
			for r := range room {
				depth := math.Floor(slope*float64(ranks-1-r)) + 1 + more
				if len(p.stages[r]) > 1 { // other ranks' stages lie between
					depth = math.Floor(slope*float64(ranks)) + more
				}
				room[r] = min(limit, max(1, depth)*perMicro[r])
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

// greedy is the state of a list scheduler.
type greedy struct {
	rule
	builder
	perMicro []float64 // by rank: memory saved for one micro-batch
	began    []float64 // by rank: start of its first pass
	free     []float64 // by rank: end of its last pass so far
	holding  []*step.Activations
	// By stage: end times of the passes done so far, by micro-batch.
	forwards, inputs, weights [][]float64
}

// schedule builds the schedule of a rule, and returns the time of a step. It returns nil if the memory does not suffice
// for a micro-batch.
func (r rule) schedule(frame builder) (_ *step.Plan, took float64) {
	ranks, stages := len(r.stages), len(frame.Blocks)
	p := *frame.Plan
	p.Ranks = make([][]step.Op, ranks)
	g := &greedy{rule: r, builder: builder{&p}, perMicro: r.placement.perMicro(r.costs),
		began: make([]float64, ranks), free: make([]float64, ranks),
		forwards: make([][]float64, stages), inputs: make([][]float64, stages), weights: make([][]float64, stages)}
	for range r.stages {
		g.holding = append(g.holding, step.NewActivations(r.costs, nil))
	}
	choices, known := make([]*choice, len(r.stages)), make([]bool, len(r.stages))
	for remaining := stages * p.Micro; remaining > 0; {
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
			remaining--
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

// choice is a pass that a rank may do next, and when it could start.
type choice struct {
	step.Op
	start float64
	place int // index of the stage among the rank's
}

// choose returns what a rank does next; nil if no pass has a known start.
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

// prefers compares two choices of the same kind of pass.
func (g *greedy) prefers(c, old choice) bool {
	if !sameTime(c.start, old.start) {
		return c.start < old.start
	}
	if c.Kind == step.Forward && g.deepFirst || c.Kind == step.WeightGrad {
		return c.place > old.place
	}
	return c.Micro < old.Micro || c.Micro == old.Micro && c.Kind != step.Forward && c.place > old.place
}

// arrives returns when a stage's output for a micro-batch is on a rank, given the end times of the passes. At the ends
// of the model it is there from the start.
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

// commit appends a choice to a rank's list.
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

// admits reports whether a rank may save another micro-batch of a stage: those that it has begun must still be able to
// finish one after another, the oldest first, each freeing its memory for the next.
func (g *greedy) admits(rank, stage, microbatch int) bool {
	size, _ := g.costs.Saved(stage)
	unused := g.room[rank] - g.holding[rank].Held - size
	if unused < -tolerance*g.room[rank] {
		return false
	}
	stages := g.stages[rank]
	if len(stages) == 1 || unused >= g.perMicro[rank] {
		return true
	}
	oldest, newest := g.Micro, microbatch
	for _, s := range stages {
		oldest, newest = min(oldest, len(g.weights[s])), max(newest, len(g.forwards[s])-1)
	}
	for m := oldest; m <= newest; m++ {
		needed, held := 0.0, 0.0
		for _, s := range stages {
			size, afterInput := g.costs.Saved(s)
			switch begun := m < len(g.forwards[s]) || s == stage && m == microbatch; {
			case !begun:
				needed += size
			case m < len(g.weights[s]):
			case m < len(g.inputs[s]):
				held += afterInput
			default:
				held += size
			}
		}
		if needed > unused+tolerance*g.room[rank] {
			return false
		}
		unused += held
	}
	return true
}
