package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// KindSearch is the name of what [Search] finds, where that is no named schedule.
const KindSearch Kind = "search"

// Search looks for a synchronous schedule with the least Timeline.StepTime at costs, in which no rank's PeakMemory is above
// memory (0 is no limit). The model has ranks·chunks stages, for which costs must have their lists, and a rank has chunks
// of them: placed in a loop, stage s on rank s mod ranks, or, with two chunks, in a V as in [ZBV].
//
// What it returns is never slower than a named kind with that many stages and each on one rank that fits. Candidates are
// those kinds, and schedules that a list scheduler makes by various rules (after the automatic scheduling of Qi et al. 2023,
// "Zero Bubble Pipeline Parallelism", §3.1). The best of them are then improved: two neighbours in a rank's order swap
// places as long as that helps. It need not be the best there is. The same question has the same answer; the effort is
// bounded, and grows with the number of actions.
//
// It is an error if costs are none, if a size is below 1, and if no schedule fits: then it says the least memory needed.
func Search(ranks, microbatches, chunks int, costs Costs, memory float64) (Schedule, error) {
	frame, err := blank(KindSearch, ranks, microbatches, chunks, 3)
	if err != nil {
		return Schedule{}, err
	}
	if err := costs.check(frame.Stages); err != nil {
		return Schedule{}, err
	}
	if !(memory >= 0) {
		return Schedule{}, fmt.Errorf("schedule: a search with memory %v: give the most that a rank may hold, or 0 for no limit",
			memory)
	}
	limit := cmp.Or(memory, math.Inf(1))
	places := placements(ranks, chunks)
	least := math.Inf(1)
	for _, p := range places {
		least = min(least, slices.Max(p.shares(costs)))
	}
	if least > limit {
		return Schedule{}, fmt.Errorf("schedule: no schedule of %d ranks with %d chunks each fits in memory %g: "+
			"one micro-batch at a time takes %g; allow that at least", ranks, chunks, limit, least)
	}
	f := finder{costs: costs, limit: limit}
	for _, k := range Kinds() {
		s, err := named(k, ranks, microbatches, chunks)
		if err != nil || s.Stages != frame.Stages || !k.Synchronous() || k == KindDualPipe {
			continue // not for these numbers, or of another shape
		}
		if err := f.add(s); err != nil {
			return Schedule{}, err
		}
	}
	if f.optimal(places, microbatches) {
		return f.best()
	}
	for _, p := range places {
		all := rules(p, costs, limit)
		for i, r := range all {
			// Of a large schedule only some rules are tried, the last of which may use all memory.
			if every := 1 + len(all)*len(places)*3*frame.Stages*microbatches/mostPlaced; (len(all)-1-i)%every > 0 {
				continue
			}
			if c, ok := r.schedule(frame); ok {
				f.found = append(f.found, c)
			}
		}
	}
	return f.best()
}

// named builds a kind with as many stages as a rank is to have.
func named(k Kind, ranks, microbatches, chunks int) (Schedule, error) {
	if !k.Chunked() {
		chunks = 0
	}
	return New(k, ranks, microbatches, chunks)
}

// finder keeps the candidates.
type finder struct {
	costs Costs
	limit float64
	found []candidate
}

// candidate is a schedule that fits, and how good it is.
type candidate struct {
	Schedule
	score
}

// score says how good an order is. Lower is better.
type score struct {
	step  float64 // StepTime
	spans float64 // of all ranks: less is nearer to a shorter step
}

func (s score) compare(o score) int {
	if !sameTime(s.step, o.step) {
		return cmp.Compare(s.step, o.step)
	}
	if !sameTime(s.spans, o.spans) {
		return cmp.Compare(s.spans, o.spans)
	}
	return 0
}

// add takes a named schedule if it fits.
func (f *finder) add(s Schedule) error {
	for r, actions := range s.Ranks {
		if !f.fits(actions, s.On(r)) {
			return nil
		}
	}
	c, err := f.clock(s)
	if err != nil {
		return err
	}
	if !c.play(c.orders) {
		return fmt.Errorf("schedule: the ranks of %q wait for each other", s.Name)
	}
	f.found = append(f.found, candidate{s, c.rate(c.orders)})
	return nil
}

func (f *finder) clock(s Schedule) (*clock, error) {
	n, err := newNetwork(s, f.costs)
	if err != nil {
		return nil, err
	}
	return newClock(n), nil
}

// fits tells whether a rank with these stages that does the actions in this order keeps to the limit.
func (f *finder) fits(actions []Action, stages []int) bool {
	return peak(actions, stages, f.costs) <= f.limit*(1+tolerance)
}

// tolerance is the share of a limit that a sum of fractions may be above it.
const tolerance = 1e-12

// rate is the score of what was just played.
func (c *clock) rate(orders [][]int) (s score) {
	for _, order := range orders {
		span := c.span(order)
		s.step, s.spans = max(s.step, span), s.spans+span
	}
	return s
}

// bound is a time that no step with these ranks' stages is shorter than: that in which the busiest rank computes.
func (f *finder) bound(s Schedule) (most float64) {
	for _, actions := range s.Ranks {
		busy := 0.0
		for _, a := range actions {
			busy += f.costs.Took(a)
		}
		most = max(most, busy)
	}
	return most
}

// optimal tells whether a step is found that no schedule's can be shorter than.
func (f *finder) optimal(places []placement, microbatches int) bool {
	least := math.Inf(1)
	for _, p := range places {
		most := 0.0
		for _, stages := range p.stages {
			busy := 0.0
			for _, s := range stages {
				took := func(p Pass) float64 { return f.costs.Took(Action{Pass: p, Stage: s}) }
				each := took(Forward) + min(took(Backward), took(InputGrad)+took(WeightGrad))
				busy += float64(microbatches)*each + took(Update)
			}
			most = max(most, busy)
		}
		least = min(least, most)
	}
	return slices.ContainsFunc(f.found, func(c candidate) bool { return sameTime(c.step, least) })
}
