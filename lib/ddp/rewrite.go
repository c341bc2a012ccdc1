package ddp

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Average writes data parallelism into a plan: each unit's gradients are reduced along its axes (Li et al. 2020,
// "PyTorch Distributed", §3.2). At once, they are as soon as a unit's are complete, while the passes of other blocks go
// on; else behind all passes. Each has those of each micro-batch reduced, not the sums of all, as without PyTorch's
// no_sync; then not at once is before the next forward pass. Units that are sharded are left alone.
func Average(p *step.Plan, atOnce, each bool) *step.Plan {
	q := p.Clone()
	for r := range q.Ranks {
		complete := q.Complete(r)
		var late []step.Op
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			for _, c := range complete[i] {
				if q.Units[c.Unit].Shard != "" || !each && !c.Last {
					continue
				}
				for _, axis := range q.Units[c.Unit].Reduce {
					behind = append(behind, step.Op{Kind: step.Reduce, What: step.Gradient, Unit: c.Unit, Micro: op.Micro, Axis: axis})
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

// Local writes local SGD into a plan (Stich 2019, "Local SGD Converges Fast and Communicates Little"): ranks update
// with their own gradients, which are not reduced along an axis, and the returned plans are those of so many steps, in
// the last of which their states, parameters and optimizer's alike, are averaged along it.
func Local(p *step.Plan, every int, axis string) []*step.Plan {
	q := p.Clone()
	for u := range q.Units {
		q.Units[u].Reduce = slices.DeleteFunc(slices.Clone(q.Units[u].Reduce), func(name string) bool { return name == axis })
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
