// Package schedule has the schedules of pipeline parallelism as data: which rank computes which pass of which stage for
// which micro-batch, in which order. They can be checked, simulated with any costs, drawn, written and read, and searched
// for; package pipeline runs them.
package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Pass is what an action computes. The letters are those of PyTorch's schedules.
type Pass byte

const (
	Forward    Pass = 'F'
	Backward   Pass = 'B' // the gradients of the input and of the weights
	InputGrad  Pass = 'I' // the gradient of the input alone, which the stage before waits for
	WeightGrad Pass = 'W' // the gradients of the weights alone, which nobody waits for; after InputGrad
	Update     Pass = 'U' // applies the gradients that came since the update before
)

// String is the pass in words: "forward", "backward", "input gradient", "weight gradient", "update".
func (p Pass) String() string {
	switch p {
	case Forward:
		return "forward"
	case Backward:
		return "backward"
	case InputGrad:
		return "input gradient"
	case WeightGrad:
		return "weight gradient"
	case Update:
		return "update"
	}
	return fmt.Sprintf("pass %q", byte(p))
}

// Action is one pass of a stage for a micro-batch. An update is for the last micro-batch whose gradients are in it.
type Action struct {
	Pass       Pass
	Stage      int // of the model, from 0
	Microbatch int // from 0
}

// String is the action as PyTorch writes it: stage, pass, micro-batch, as in 2F0.
func (a Action) String() string { return fmt.Sprintf("%d%c%d", a.Stage, a.Pass, a.Microbatch) }

// InputFrom returns the stage, of so many, whose output an action takes: for a forward pass the one before, for a backward pass, or
// the first part of one, the one behind. At the ends of the model, and for other passes, there is none.
func (a Action) InputFrom(stages int) (stage int, ok bool) {
	switch a.Pass {
	case Forward:
		return a.Stage - 1, a.Stage > 0
	case Backward, InputGrad:
		return a.Stage + 1, a.Stage < stages-1
	}
	return 0, false
}

// OutputTo returns the stage, of so many, that takes an action's output, as [Action.InputFrom] says it.
func (a Action) OutputTo(stages int) (stage int, ok bool) {
	switch a.Pass {
	case Forward:
		return a.Stage + 1, a.Stage < stages-1
	case Backward, InputGrad:
		return a.Stage - 1, a.Stage > 0
	}
	return 0, false
}

// Weights says which version of the weights the passes of a micro-batch use. Version v is what v updates have made. Both
// passes use the same one, whatever updates come between.
type Weights string

const (
	// Flush updates when all micro-batches have passed: all use version 0, as in synchronous training.
	Flush Weights = "flush"
	// Stash has each stage use the newest version that its rank has when the forward pass begins, and keep it for the
	// backward pass (PipeDream's weight stashing, Narayanan et al. 2019, §3.3).
	Stash Weights = "stash"
	// Vertical has all stages use the version that the first stage used (PipeDream's vertical sync, §3.3).
	Vertical Weights = "vertical"
	// Double has each batch of Every micro-batches use the version before the newest, so that there are never more than
	// two (PipeDream-2BW, Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", §3.1).
	Double Weights = "double"
)

// Schedule is who does what in which order, for one step. It is plain data: change it, or write one by hand, and have
// [Schedule.Check] say whether it can be.
type Schedule struct {
	Name         string
	Stages       int // of the model
	Microbatches int
	Every        int // micro-batches that go into one update; with Flush all of them
	Weights      Weights
	// Ranks has each rank's actions in their order. A stage may be on several ranks (each has its weights then), but all
	// passes of a stage for a micro-batch are on one.
	Ranks [][]Action
}

// Holders returns, for each stage, the ranks that have it, in ascending order; nil for sizes that cannot be.
func (s Schedule) Holders() [][]int {
	if s.head() != nil {
		return nil
	}
	holders := make([][]int, s.Stages)
	for r, actions := range s.Ranks {
		for _, a := range actions {
			if a.Stage < 0 || a.Stage >= s.Stages {
				continue
			}
			if n := len(holders[a.Stage]); n == 0 || holders[a.Stage][n-1] != r {
				holders[a.Stage] = append(holders[a.Stage], r)
			}
		}
	}
	return holders
}

// On returns the stages that a rank has, in ascending order.
func (s Schedule) On(rank int) (stages []int) {
	for _, a := range s.Ranks[rank] {
		stages = append(stages, a.Stage)
	}
	slices.SortFunc(stages, cmp.Compare[int])
	return slices.Compact(stages)
}
