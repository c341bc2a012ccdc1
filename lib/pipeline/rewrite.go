package pipeline

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Spread distributes the blocks of a model, the plan of one device, over the ranks of a pipeline, in the order of a
// schedule whose blocks are the stages. Cut is the number of blocks of each stage ([Even], [Balance]). The result has
// the messages between ranks. Units that several ranks share, such as a tied embedding's, get an axis that joins these
// ranks; reductions along it are left to other rewrites.
//
// It returns an error for a cut that does not fit, for a schedule that fails its Check or has other operations than
// passes, updates and messages, and for shared units with an asynchronous schedule.
func Spread(model, schedule *step.Plan, cut []int) (*step.Plan, error) {
	if err := checkCut(cut, len(schedule.Blocks), len(model.Blocks)); err != nil {
		return nil, err
	}
	if err := schedule.Check(); err != nil {
		return nil, err
	}
	p := model.Clone()
	p.Name, p.Micro, p.Every, p.Weights, p.Ranks = schedule.Name, schedule.Micro, schedule.Every, schedule.Weights, nil
	first := []int{0} // the first block of each stage
	for _, n := range cut {
		first = append(first, first[len(first)-1]+n)
	}
	for r, list := range schedule.Ranks {
		var own []step.Op
		updates := 0
		for _, op := range list {
			from, to := first[op.Block], first[op.Block+1]
			switch op.Kind {
			case step.Forward, step.Recompute:
				for b := from; b < to; b++ {
					own = append(own, step.Op{Kind: op.Kind, Block: b, Micro: op.Micro, Paired: op.Paired})
				}
			case step.Backward, step.InputGrad, step.WeightGrad:
				for b := to - 1; b >= from; b-- {
					own = append(own, step.Op{Kind: op.Kind, Block: b, Micro: op.Micro, Paired: op.Paired})
				}
			case step.Update: // a rank's stages are updated together
				if updates++; updates%len(schedule.On(r)) == 0 {
					own = append(own, step.Op{Kind: step.Update, Unit: -1, Micro: op.Micro})
				}
			case step.Send, step.Recv: // WithMessages adds them again
			default:
				if op.Kind == step.Wait && (op.Of == step.Send || op.Of == step.Recv) {
					continue
				}
				return nil, fmt.Errorf("pipeline: the schedule has %s on rank %d: give it passes, updates and "+
					"messages only", schedule.Text(op), r)
			}
		}
		p.Ranks = append(p.Ranks, own)
	}
	for u, unit := range p.Units {
		var have []int
		for r := range p.Ranks {
			if slices.Contains(p.UnitsOn(r), u) {
				have = append(have, r)
			}
		}
		if len(have) > 1 && p.Weights != step.Flush {
			return nil, fmt.Errorf("pipeline: ranks %v share %s, which they would update at different times with "+
				"schedule %s: untie it, or use a synchronous schedule", have, unit.Name, p.Name)
		}
	}
	p = p.Replicate(1, "shared")
	return p.WithMessages()
}

// checkCut returns an error unless each stage has at least one block, and all blocks have a stage.
func checkCut(cut []int, stages, blocks int) error {
	if len(cut) != stages {
		return fmt.Errorf("pipeline: the cut %v has %d stages, the schedule %d: give a number of blocks for each stage",
			cut, len(cut), stages)
	}
	sum := 0
	for i, n := range cut {
		if n < 1 {
			return fmt.Errorf("pipeline: the cut %v gives stage %d %d blocks: give each at least 1", cut, i, n)
		}
		sum += n
	}
	if sum != blocks {
		return fmt.Errorf("pipeline: the cut %v is for %d blocks, the model has %d: let it add up to that",
			cut, sum, blocks)
	}
	return nil
}
