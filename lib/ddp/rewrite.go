package ddp

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Average inserts the reductions of data parallelism into a plan: each unit's gradients are reduced along the unit's
// axes, after the last micro-batch or, with each, after every micro-batch as without PyTorch's no_sync (Li et al. 2020,
// "PyTorch Distributed", §3.2). With atOnce a unit is reduced as soon as its gradients are complete, while the passes
// of other blocks run; otherwise after all passes, or before the next micro-batch's. Units that are reduced already
// are not changed.
func Average(p *step.Plan, atOnce, each bool) *step.Plan {
	q := p.Clone()
	for r := range q.Ranks {
		complete := q.Complete(r)
		done := map[int]bool{}
		for _, op := range q.Ranks[r] {
			if op.Kind == step.Reduce && op.What == step.Gradient {
				done[op.Unit] = true
			}
		}
		var late []step.Op
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			for _, c := range complete[i] {
				if done[c.Unit] || !each && !c.Last {
					continue
				}
				for _, axis := range q.Units[c.Unit].Reduce {
					behind = append(behind, step.Op{Kind: step.Reduce, What: step.Gradient, Unit: c.Unit,
						Micro: op.Micro, Axis: axis})
				}
			}
			if !atOnce {
				late, behind = append(late, behind...), nil
			}
			if op.Kind == step.Update || each && op.Kind == step.Forward {
				before, late = late, nil
			}
			return before, behind
		})
	}
	return q
}

// Local rewrites a plan for local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little"). It returns the
// plans of every steps: ranks update with gradients that are not reduced along the axis, and the last step averages
// parameters and optimizer states along it.
func Local(p *step.Plan, every int, axis string) []*step.Plan {
	q := p.Clone()
	for u := range q.Units {
		q.Units[u].Reduce = slices.DeleteFunc(slices.Clone(q.Units[u].Reduce),
			func(name string) bool { return name == axis })
	}
	plans := make([]*step.Plan, every)
	for i := range plans {
		plans[i] = q
	}
	last := q.Clone()
	for r := range last.Ranks {
		last.Ranks[r] = append(last.Ranks[r], step.Op{Kind: step.Reduce, What: step.State, Unit: -1, Axis: axis})
	}
	plans[every-1] = last
	return plans
}
