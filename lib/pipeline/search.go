package pipeline

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// KindSearch is the name of a schedule that [Search] finds, unless it is a named one.
const KindSearch Kind = "search"

// Search looks for the synchronous schedule with the least step.Timeline.StepTime at given costs, such that no rank's
// PeakMemory exceeds memory (0 means no limit). The model has ranks·chunks stages, to which the lists in costs refer. A
// rank has chunks stages: stage s is on rank s mod ranks or, with two chunks, placed in a V as in [ZBV].
//
// The result is never slower than a named schedule with these stages, each on one rank, that fits. The candidates are
// those schedules and the results of list schedulers with various rules (after the automatic scheduling of Qi et al.
// 2023, "Zero Bubble Pipeline Parallelism", §3.1), so there may be better ones. The result is deterministic, and the
// effort is bounded: about linear in the number of passes.
//
// It returns an error for invalid costs, for sizes below 1, and if no schedule fits, with the least memory that is
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
		return nil, fmt.Errorf("schedule: memory is %v: give the most that a rank may hold, or 0 for no limit", memory)
	}
	limit, least := cmp.Or(memory, math.Inf(1)), math.Inf(1)
	places := placements(ranks, chunks)
	for _, p := range places {
		least = min(least, slices.Max(p.perMicro(costs)))
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
			continue // impossible sizes, or another placement
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
			// For a large schedule only some rules are tried, and always the last, which may use all memory.
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

// mostPlaced is about how many passes the list schedulers of a search place.
const mostPlaced = 2_000_000

// tolerance is the relative rounding error of a sum that may exceed a limit.
const tolerance = 1e-12

// sameTime reports whether numbers are equal up to rounding.
func sameTime(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// placement is the rank of each stage, and the stages of each rank in ascending order.
type placement struct {
	rank   []int
	stages [][]int
}

// placements returns the placements that a search tries.
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

// perMicro returns the memory that each rank saves for one micro-batch.
func (p placement) perMicro(c step.Costs) (sums []float64) {
	for _, stages := range p.stages {
		sum := 0.0
		for _, s := range stages {
			saved, _ := c.Saved(s)
			sum += saved
		}
		sums = append(sums, sum)
	}
	return sums
}
