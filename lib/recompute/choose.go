package recompute

import (
	"fmt"
	"slices"
	"sort"
)

// Choose returns which steps to keep so that [Peak] is within a budget of bytes and making the others again costs
// least, with that peak and that cost. If no choice is within the budget, the error says how much the thriftiest needs.
//
// This is dynamic programming: the least cost for each kept step and each sum of the bytes kept up to it. Sums are
// exact, so no choice exceeds the budget; but of those within a 2048th of the budget only the cheapest is followed. So
// the cost is the least possible where all bytes are multiples of one number that is at least such a part, as those of
// equal blocks mostly are, and otherwise close to it. The time grows with 2048·n for n steps, and if no choice is
// within the budget with n².
func Choose(steps []Step, budget int64) (keep []bool, peak int64, cost float64, err error) {
	if err := checkSteps(steps); err != nil {
		return nil, 0, 0, err
	}
	c := newChain(steps)
	all := c.bytes[len(steps)]
	if all <= budget {
		return slices.Repeat([]bool{true}, len(steps)), all, 0, nil
	}
	end := c.cheapest(budget)
	if end == nil { // since the cheapest of several sums has led nowhere
		end = c.leanest(budget)
	}
	if end == nil {
		least := sort.Search(int(all), func(peak int) bool { return c.leanest(int64(peak)) != nil })
		return nil, 0, 0, fmt.Errorf("recompute: no choice needs at most %d bytes: the least possible is %d", budget, least)
	}
	keep = make([]bool, len(steps))
	for ; end.at > 0; end = end.before {
		if end.at <= len(steps) {
			keep[end.at-1] = true
		}
	}
	for i, s := range steps {
		if !keep[i] {
			cost += s.Cost
		}
	}
	return keep, Peak(steps, keep), cost, nil
}

// resolution is how many sums of bytes up to the budget are told apart.
const resolution = 2048

// chain is steps with sums over them. Step i of n counts from 1; the end is step n+1, which is kept and has no bytes.
type chain struct {
	steps []Step
	bytes []int64   // of the first i steps
	costs []float64 // of the first i steps
	unit  int64     // divides the bytes of all steps
}

func newChain(steps []Step) chain {
	c := chain{steps: append(steps[:len(steps):len(steps)], Step{Always: true}), bytes: []int64{0}, costs: []float64{0}}
	for i, s := range c.steps {
		c.bytes, c.costs = append(c.bytes, c.bytes[i]+s.Bytes), append(c.costs, c.costs[i]+s.Cost)
		c.unit = divisor(c.unit, s.Bytes)
	}
	return c
}

// divisor is the greatest common divisor.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// choice is one for the steps up to one that is kept.
type choice struct {
	at     int     // the kept step, 0 before all
	before *choice // up to the kept step before
	kept   int64   // bytes kept so far
	cost   float64 // of making again what was not

	// The same less the sums over all steps up to at. So what keeping step j next needs and costs is more by the sums
	// up to j, whatever at is.
	need int64
	rank float64
}

// then returns the choice that keeps step j next.
func (c chain) then(from *choice, j int) choice {
	kept, cost := from.kept+c.steps[j-1].Bytes, from.rank+c.costs[j-1]
	return choice{j, from, kept, cost, kept - c.bytes[j], cost - c.costs[j]}
}

// peak is that of keeping step j next. It only grows with j.
func (c chain) peak(from *choice, j int) int64 { return from.need + c.bytes[j] }

// cheapest returns the choice of least cost up to the end, nil if it finds none.
func (c chain) cheapest(budget int64) *choice {
	unit := max(1, c.unit, budget/resolution)
	// Choices with about the same bytes form a lane. Those made later stay within the budget for longer, so of a lane
	// only those matter which are cheaper than all made after them: the first is the cheapest. (A sliding window's
	// minimum.)
	lanes := make([][]*choice, max(0, budget)/unit+1)
	lanes[0] = []*choice{{}}
	next := make([]choice, len(lanes)) // those that keep step j
	for j := 1; ; j++ {
		clear(next)
		for q, lane := range lanes {
			for len(lane) > 0 && c.peak(lane[0], j) > budget {
				lane = lane[1:]
			}
			if lanes[q] = lane; len(lane) == 0 {
				continue
			}
			to := c.then(lane[0], j)
			if old := &next[to.kept/unit]; old.at == 0 || to.cost < old.cost {
				*old = to
			}
			if c.steps[j-1].Always {
				lanes[q] = nil
			}
		}
		var best *choice
		for q := range next {
			if next[q].at == 0 || best != nil && next[q].cost >= best.cost {
				continue // more bytes for no less cost
			}
			best = new(next[q])
			lane := lanes[q]
			for len(lane) > 0 && lane[len(lane)-1].rank >= best.rank {
				lane = lane[:len(lane)-1]
			}
			lanes[q] = append(lane, best)
		}
		if j == len(c.steps) {
			return best
		}
	}
}

// leanest returns a choice up to the end with a peak within the budget, nil if there is none: of all choices up to a
// kept step the one that keeps least can go on wherever another can.
func (c chain) leanest(budget int64) *choice {
	best := make([]choice, len(c.steps)+1)
	reached := make([]bool, len(best))
	reached[0] = true
	for j := 1; j < len(best); j++ {
		for i := j - 1; i >= 0; i-- {
			if reached[i] && c.peak(&best[i], j) <= budget && (!reached[j] || best[i].kept < best[j].before.kept) {
				best[j], reached[j] = c.then(&best[i], j), true
			}
			if i > 0 && c.steps[i-1].Always {
				break
			}
		}
	}
	if !reached[len(c.steps)] {
		return nil
	}
	return &best[len(c.steps)]
}
