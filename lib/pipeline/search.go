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
// al. 2023, "Zero Bubble Pipeline Parallelism", §3.1). The best of them are then improved: two neighbours in a rank's
// order swap places as long as that helps. It need not be the best there is. The same question has the same answer;
// the effort is bounded, and grows with the number of passes.
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
	f := finder{costs: costs, limit: cmp.Or(memory, math.Inf(1))}
	places := placements(ranks, chunks)
	least := math.Inf(1)
	for _, p := range places {
		least = min(least, slices.Max(p.shares(costs)))
	}
	if least > f.limit {
		return nil, fmt.Errorf("schedule: no schedule of %d ranks with %d chunks each fits in memory %g: "+
			"one micro-batch at a time takes %g; allow that at least", ranks, chunks, f.limit, least)
	}
	for _, k := range Kinds() {
		own := 0
		if k.Chunked() {
			own = chunks
		}
		p, err := NewSchedule(k, ranks, microbatches, own)
		if err != nil || len(p.Blocks) != stages || !k.Synchronous() || k == KindDualPipe {
			continue // not for these numbers, or of another shape
		}
		if err := f.add(p); err != nil {
			return nil, err
		}
	}
	bound := math.Inf(1)
	for _, p := range places {
		bound = min(bound, f.bound(p.stages, microbatches))
	}
	if !slices.ContainsFunc(f.found, func(c candidate) bool { return sameTime(c.step, bound) }) {
		for _, p := range places {
			all := rules(p, costs, f.limit)
			for i, r := range all {
				// Of a large schedule only some rules are tried, the last of which may use all memory.
				if every := 1 + len(all)*len(places)*3*stages*microbatches/mostPlaced; (len(all)-1-i)%every > 0 {
					continue
				}
				if p := r.schedule(frame); p != nil {
					if err := f.add(p); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return f.best()
}

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

// finder keeps the candidates.
type finder struct {
	costs step.Costs
	limit float64
	found []candidate
}

// candidate is a schedule that fits, and how good it is.
type candidate struct {
	*step.Plan
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

// sameTime tells whether numbers are equal but for rounding.
func sameTime(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// add takes a schedule if it fits.
func (f *finder) add(p *step.Plan) error {
	for _, list := range p.Ranks {
		if !f.fits(list) {
			return nil
		}
	}
	c, err := newClock(p, f.costs)
	if err != nil {
		return err
	}
	c.play()
	f.found = append(f.found, candidate{p, c.rate()})
	return nil
}

// fits tells whether a rank that does a list keeps to the limit.
func (f *finder) fits(list []step.Op) bool {
	a := step.NewActivations(f.costs, nil)
	for _, op := range list {
		a.Start(op)
		a.End(op)
	}
	return a.Most <= f.limit*(1+tolerance)
}

// tolerance is the share of a limit that a sum of fractions may be above it.
const tolerance = 1e-12

// bound is a time that no step is shorter than whose ranks have these stages: that in which the busiest computes.
func (f *finder) bound(stages [][]int, microbatches int) (most float64) {
	for _, own := range stages {
		busy := 0.0
		for _, s := range own {
			took := func(k step.Kind) float64 { return f.costs.Took(step.Op{Kind: k, Block: s, Unit: s}) }
			back := min(took(step.Backward), took(step.InputGrad)+took(step.WeightGrad))
			busy += float64(microbatches)*(took(step.Forward)+back) + took(step.Update)
		}
		most = max(most, busy)
	}
	return most
}

func (f *finder) boundOf(p *step.Plan) float64 {
	var stages [][]int
	for r := range p.Ranks {
		stages = append(stages, p.On(r))
	}
	return f.bound(stages, p.Micro)
}

// Effort: how many of the best candidates are improved; and the passes that list schedulers place, about, and those
// that are played anew when neighbours have swapped places.
const (
	improved   = 4
	mostPlaced = 2_000_000
	mostPlayed = 4_000_000
)

// best improves the best candidates and returns the best of all. A named one that nothing beats keeps its name.
func (f *finder) best() (*step.Plan, error) {
	best := f.found[0]
	for _, c := range f.found {
		if c.step < best.step && !sameTime(c.step, best.step) {
			best = c
		}
	}
	slices.SortStableFunc(f.found, func(a, b candidate) int { return a.compare(b.score) })
	for _, c := range f.found[:min(improved, len(f.found))] {
		if sameTime(best.step, f.boundOf(best.Plan)) {
			break
		}
		c, err := f.improve(c, mostPlayed/improved)
		if err != nil {
			return nil, err
		}
		if c.step < best.step && !sameTime(c.step, best.step) {
			best = c
		}
	}
	return best.Plan, nil
}

// improve swaps neighbours in the ranks' orders as long as that makes the score better, and passes are played no more
// often than plays.
func (f *finder) improve(c candidate, plays int) (candidate, error) {
	c.Plan = c.Clone()
	clk, err := newClock(c.Plan, f.costs)
	if err != nil {
		return c, err
	}
	bound := f.boundOf(c.Plan)
	for better := true; better; {
		better = false
		for r, list := range c.Ranks {
			order := clk.orders[r]
			for k := 0; k+1 < len(list); k++ {
				a, b := list[k], list[k+1]
				if b.Kind == step.Update || a.Block == b.Block && (a.Kind == b.Kind || a.Micro == b.Micro) {
					continue // gradients are summed in order, and updates come last
				}
				if plays -= len(clk.took); plays < 0 || sameTime(c.step, bound) {
					return c, nil
				}
				swap := func() {
					order[k], order[k+1] = order[k+1], order[k]
					list[k], list[k+1] = list[k+1], list[k]
				}
				swap()
				if (b.Kind != step.Forward || f.fits(list)) && clk.play() {
					if s := clk.rate(); s.compare(c.score) < 0 {
						c.score, c.Name, better = s, string(KindSearch), true
						continue
					}
				}
				swap()
			}
		}
	}
	return c, nil
}

// clock computes when passes run, whose stages are on one rank each. It may play many orders of the same passes, which
// it knows by numbers.
type clock struct {
	orders     [][]int   // the passes of each rank, in their order
	took, link []float64 // of each pass; of what it needs of another stage
	needs      []int     // what it needs of another stage, or -1
	start, end []float64
	done       []bool
	waiting    []int // by pass: the rank that waits for it, or -1
	next, todo []int // by rank: position of what it does next; ranks that may go on
}

func newClock(p *step.Plan, costs step.Costs) (*clock, error) {
	c := &clock{orders: make([][]int, len(p.Ranks)), next: make([]int, len(p.Ranks))}
	at := map[[3]int]int{} // by stage, micro-batch and direction
	key := func(op step.Op, way int) [3]int {
		if op.Kind == step.Forward {
			return [3]int{op.Block + way, op.Micro, 0}
		}
		return [3]int{op.Block - way, op.Micro, 1}
	}
	var rank []int
	for r, list := range p.Ranks {
		for _, op := range list {
			if op.Kind != step.WeightGrad && op.Kind != step.Update {
				at[key(op, 0)] = len(rank)
			}
			c.orders[r] = append(c.orders[r], len(rank))
			rank, c.took = append(rank, r), append(c.took, costs.Took(op))
		}
	}
	n := len(rank)
	c.start, c.end, c.done, c.link = make([]float64, n), make([]float64, n), make([]bool, n), make([]float64, n)
	c.needs, c.waiting = slices.Repeat([]int{-1}, n), make([]int, n)
	for r, list := range p.Ranks {
		for k, op := range list {
			from, ok := at[key(op, -1)]
			if !ok || op.Kind == step.WeightGrad || op.Kind == step.Update {
				continue
			}
			i := c.orders[r][k]
			link, err := costs.Between(rank[from], r)
			if err != nil {
				return nil, err
			}
			c.needs[i], c.link[i] = from, link
		}
	}
	return c, nil
}

// play starts each pass when its rank is free and what it needs is there. It returns false if ranks wait for each
// other.
func (c *clock) play() bool {
	clear(c.done)
	clear(c.next)
	c.todo = c.todo[:0]
	for r := range c.orders {
		c.todo = append(c.todo, r)
	}
	for i := range c.waiting {
		c.waiting[i] = -1
	}
	played := 0
	for len(c.todo) > 0 {
		r := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		for order := c.orders[r]; c.next[r] < len(order); c.next[r]++ {
			i, start := order[c.next[r]], 0.0
			if from := c.needs[i]; from >= 0 {
				if !c.done[from] {
					c.waiting[from] = r
					break
				}
				start = c.end[from] + c.link[i]
			}
			if c.next[r] > 0 {
				start = max(start, c.end[order[c.next[r]-1]])
			}
			c.start[i], c.end[i], c.done[i] = start, start+c.took[i], true
			if c.waiting[i] >= 0 {
				c.todo = append(c.todo, c.waiting[i])
			}
			played++
		}
	}
	return played == len(c.took)
}

// rate is the score of what was just played.
func (c *clock) rate() (s score) {
	for _, order := range c.orders {
		if n := len(order); n > 0 {
			span := c.end[order[n-1]] - c.start[order[0]]
			s.step, s.spans = max(s.step, span), s.spans+span
		}
	}
	return s
}
