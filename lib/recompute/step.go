package recompute

import (
	"fmt"
	"math"
)

// Step is one of the steps of a forward pass, in their order.
type Step struct {
	Name string
	// Bytes is what the backward pass needs of the step: kept since the forward pass, or made again.
	Bytes int64
	// Cost is the price of making it again, in any unit.
	Cost float64
	// Always says that it must be kept.
	Always bool
}

// Peak returns the most bytes that the steps hold at any time of the backward pass if some are kept, steps[i] where
// keep[i], and the others made again: those of a run between two kept steps once, together, when the backward pass has
// come to the kept step after them. At that time there are the run, that kept step, and what was kept before the run;
// what comes after has been freed.
func Peak(steps []Step, keep []bool) int64 {
	var kept, run, peak int64
	for i, s := range steps {
		if i >= len(keep) || !keep[i] {
			run += s.Bytes
			continue
		}
		kept += s.Bytes
		peak, run = max(peak, kept+run), 0
	}
	return max(peak, kept+run)
}

// PlanOf returns the plan of a choice, whose steps are the operations of [AllOps] for each block in turn. Another
// number of steps than blocks have is an error.
func PlanOf(keep []bool) (Plan, error) {
	if len(keep)%int(ops) != 0 {
		return nil, fmt.Errorf("recompute: a choice among %d steps: give %d for each block, one an operation", len(keep), ops)
	}
	plan := make(Plan, len(keep)/int(ops))
	for i, kept := range keep {
		if !kept {
			plan[i/int(ops)] |= SetOf(Op(i % int(ops)))
		}
	}
	return plan, nil
}

// checkSteps returns an error that names a step which can be none, or all if their sum overflows.
func checkSteps(steps []Step) error {
	var bytes int64
	var cost float64
	for i, s := range steps {
		switch {
		case s.Bytes < 0:
			return fmt.Errorf("recompute: step %d, %q, has %d bytes: give at least 0", i, s.Name, s.Bytes)
		case !(s.Cost >= 0) || math.IsInf(s.Cost, 1):
			return fmt.Errorf("recompute: step %d, %q, costs %g: give a number of at least 0, or set Always", i, s.Name, s.Cost)
		}
		bytes, cost = bytes+s.Bytes, cost+s.Cost
		if bytes < 0 || math.IsInf(cost, 1) {
			return fmt.Errorf("recompute: the bytes or the costs of all steps are too many to add at step %d, %q", i, s.Name)
		}
	}
	return nil
}
