package recompute

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// Choose returns the steps to save so that [Peak] is within a budget of bytes and recomputing the others costs least,
// with that peak and cost. If no choice is within the budget, the error says how many bytes the smallest needs.
//
// It is dynamic programming over the saved steps and the bytes saved up to each. Sums of bytes are exact, so no choice
// exceeds the budget; but among choices whose sums differ by less than 1/2048 of the budget only the cheapest is
// followed. So the cost is optimal if the bytes of all steps are multiples of such a part, as they mostly are for equal
// blocks, and near optimal otherwise. The time is O(2048·n) for n steps, and O(n²) if no choice is within the budget.
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
	if end == nil { // the cheapest of several sums may lead nowhere
		end = c.leanest(budget)
	}
	if end == nil {
		least := sort.Search(int(all), func(peak int) bool { return c.leanest(int64(peak)) != nil })
		return nil, 0, 0, fmt.Errorf("recompute: no choice needs at most %d bytes: the least possible is %d, "+
			"raise the budget", budget, least)
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

// resolution is the number of sums of bytes up to the budget that are distinguished.
const resolution = 2048

// chain is the steps with prefix sums. Steps count from 1; the end is step n+1, which is saved and has no bytes.
type chain struct {
	steps []Step
	bytes []int64   // of the first i steps
	costs []float64 // of the first i steps
	unit  int64     // divides the bytes of every step
}

func newChain(steps []Step) chain {
	c := chain{steps: append(steps[:len(steps):len(steps)], Step{Always: true}), bytes: []int64{0}, costs: []float64{0}}
	for i, s := range c.steps {
		c.bytes, c.costs = append(c.bytes, c.bytes[i]+s.Bytes), append(c.costs, c.costs[i]+s.Cost)
		c.unit = divisor(c.unit, s.Bytes)
	}
	return c
}

// divisor returns the greatest common divisor.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// choice is a choice for the steps up to a saved one.
type choice struct {
	at     int     // the saved step; 0 is before all
	before *choice // up to the previous saved step
	saved  int64   // bytes saved so far
	cost   float64 // of recomputing the others

	// saved and cost less the sums over all steps up to at. So saving step j next needs these plus the sums up to j,
	// whatever at is.
	need int64
	rank float64
}

// then returns the choice that saves step j next.
func (c chain) then(from *choice, j int) choice {
	saved, cost := from.saved+c.steps[j-1].Bytes, from.rank+c.costs[j-1]
	return choice{j, from, saved, cost, saved - c.bytes[j], cost - c.costs[j]}
}

// peak is the peak of saving step j next. It grows with j.
func (c chain) peak(from *choice, j int) int64 { return from.need + c.bytes[j] }

// cheapest returns the cheapest choice up to the end; nil if it finds none.
func (c chain) cheapest(budget int64) *choice {
	unit := max(1, c.unit, budget/resolution)
	// Choices with about the same bytes form a lane. Later choices fit the budget for longer, so in a lane only those
	// matter that are cheaper than all later ones; the first is the cheapest (a sliding window minimum).
	lanes := make([][]*choice, max(0, budget)/unit+1)
	lanes[0] = []*choice{{}}
	next := make([]choice, len(lanes)) // those that save step j
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
			if old := &next[to.saved/unit]; old.at == 0 || to.cost < old.cost {
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
// saved step, the one that saves least can continue wherever another can.
func (c chain) leanest(budget int64) *choice {
	best := make([]choice, len(c.steps)+1)
	reached := make([]bool, len(best))
	reached[0] = true
	for j := 1; j < len(best); j++ {
		for i := j - 1; i >= 0; i-- {
			if reached[i] && c.peak(&best[i], j) <= budget && (!reached[j] || best[i].saved < best[j].before.saved) {
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

// Step is one step of a forward pass, for [Choose].
type Step struct {
	Name string
	// Bytes is the memory that the backward pass needs of the step, saved or recomputed.
	Bytes int64
	// Cost is the cost of recomputing it, in any unit.
	Cost float64
	// Always says that it must be saved.
	Always bool
}

// Peak returns the largest number of bytes that the steps hold at any time of the backward pass, if steps[i] is saved
// where keep[i] and the others are recomputed. The steps between two saved ones are recomputed together, when the
// backward pass has come to the saved step after them. At that time these steps, that saved step, and what was saved
// before are in memory; what comes after has been freed.
func Peak(steps []Step, keep []bool) int64 {
	var saved, run, peak int64
	for i, s := range steps {
		if i >= len(keep) || !keep[i] {
			run += s.Bytes
			continue
		}
		saved += s.Bytes
		peak, run = max(peak, saved+run), 0
	}
	return max(peak, saved+run)
}

// PlanOf returns the plan of a choice whose steps are the operations of [AllOps] for each block in turn. It is an error
// if the number of steps is not a multiple of the number of operations.
func PlanOf(keep []bool) (Plan, error) {
	if len(keep)%int(ops) != 0 {
		return nil, fmt.Errorf("recompute: a choice of %d steps: give %d for each block, one per operation", len(keep),
			ops)
	}
	plan := make(Plan, len(keep)/int(ops))
	for i, saved := range keep {
		if !saved {
			plan[i/int(ops)] |= SetOf(Op(i % int(ops)))
		}
	}
	return plan, nil
}

// checkSteps returns an error that names an invalid step, or the step at which sums overflow.
func checkSteps(steps []Step) error {
	var bytes int64
	var cost float64
	for i, s := range steps {
		switch {
		case s.Bytes < 0:
			return fmt.Errorf("recompute: step %d, %q, has %d bytes: give at least 0", i, s.Name, s.Bytes)
		case !(s.Cost >= 0) || math.IsInf(s.Cost, 1):
			return fmt.Errorf("recompute: step %d, %q, costs %g: give a number of at least 0, or set Always", i, s.Name,
				s.Cost)
		}
		bytes, cost = bytes+s.Bytes, cost+s.Cost
		if bytes < 0 || math.IsInf(cost, 1) {
			return fmt.Errorf("recompute: the sum of bytes or costs overflows at step %d, %q: use smaller units", i,
				s.Name)
		}
	}
	return nil
}
