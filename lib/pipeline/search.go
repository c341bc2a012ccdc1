package pipeline

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// KindSearch is the name of what [Search] finds, where that is no named schedule.
const KindSearch Kind = "search"

// Search looks for a synchronous schedule with the least step.Timeline.StepTime at costs, in which no rank's
// PeakMemory is above memory (0 is no limit). The model has ranks·chunks stages, for which costs must have their
// lists, and a rank has chunks of them: placed in a loop, stage s on rank s mod ranks, or, with two chunks, in a V as
// in [ZBV].
//
// What it returns is never slower than a named kind with that many stages and each on one rank that fits. Candidates
// are those kinds, and schedules that a list scheduler makes by various rules (after the automatic scheduling of Qi et
// al. 2023, "Zero Bubble Pipeline Parallelism", §3.1). It need not be the best there is. The same question has the same
// answer; the effort is bounded, and grows with the number of passes.
//
// It is an error if costs are none, if a size is below 1, and if no schedule fits: then it says the least memory
// needed.
func Search(ranks, microbatches, chunks int, costs step.Costs, memory float64) (*step.Plan, error) {
	frame, err := blank(KindSearch, ranks, microbatches, chunks, 3)
	if err != nil {
		return nil, err
	}
	stages := len(frame.Blocks)
	if err := costs.Check(stages, stages); err != nil {
		return nil, err
	}
	if !(memory >= 0) {
		return nil, fmt.Errorf("schedule: a search with memory %v: give the most that a rank may hold, or 0 for no limit",
			memory)
	}
	limit, least := cmp.Or(memory, math.Inf(1)), math.Inf(1)
	places := placements(ranks, chunks)
	for _, p := range places {
		least = min(least, slices.Max(p.shares(costs)))
	}
	if least > limit {
		return nil, fmt.Errorf("schedule: no schedule of %d ranks with %d chunks each fits in memory %g: "+
			"one micro-batch at a time takes %g; allow that at least", ranks, chunks, limit, least)
	}
	var best *step.Plan
	shortest := math.Inf(1)
	for _, k := range Kinds() {
		own := 0
		if k.Chunked() {
			own = chunks
		}
		p, err := NewSchedule(k, ranks, microbatches, own)
		if err != nil || len(p.Blocks) != stages || !k.Synchronous() || k == KindDualPipe {
			continue // not for these numbers, or of another shape
		}
		t, err := p.Simulate(costs)
		if err != nil {
			return nil, err
		}
		if slices.Max(t.PeakMemory) <= limit*(1+tolerance) && (best == nil || t.StepTime < shortest) {
			best, shortest = p, t.StepTime
		}
	}
	for _, p := range places {
		all := rules(p, costs, limit)
		for i, r := range all {
			// Of a large schedule only some rules are tried, the last of which may use all memory.
			if every := 1 + len(all)*len(places)*3*stages*microbatches/mostPlaced; (len(all)-1-i)%every > 0 {
				continue
			}
			if p, took := r.schedule(frame); p != nil && (best == nil || took < shortest && !sameTime(took, shortest)) {
				best, shortest = p, took
			}
		}
	}
	return best, nil
}

// mostPlaced is how many passes the list schedulers of a search place, about.
const mostPlaced = 2_000_000

// tolerance is the share of a limit that a sum of fractions may be above it.
const tolerance = 1e-12

// sameTime tells whether numbers are equal but for rounding.
func sameTime(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// placement is the rank of each stage, and the stages of each rank in ascending order.
type placement struct {
	rank   []int
	stages [][]int
}

// placements are the ways in which a search deals stages to ranks.
func placements(ranks, chunks int) []placement {
	place := func(rank func(stage int) int) (p placement) {
		p.stages = make([][]int, ranks)
		for s := range ranks * chunks {
			p.rank = append(p.rank, rank(s))
			p.stages[rank(s)] = append(p.stages[rank(s)], s)
		}
		return p
	}
	all := []placement{place(func(s int) int { return s % ranks })}
	if chunks == 2 && ranks > 1 {
		all = append(all, place(func(s int) int { return min(s, 2*ranks-1-s) }))
	}
	return all
}

// shares is what each rank saves of one micro-batch.
func (p placement) shares(c step.Costs) (shares []float64) {
	for _, stages := range p.stages {
		sum := 0.0
		for _, s := range stages {
			saved, _ := c.Saved(s)
			sum += saved
		}
		shares = append(shares, sum)
	}
	return shares
}
