package recompute

import (
	"fmt"
	"math"
)

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
