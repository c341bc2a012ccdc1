package zero

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Shard rewrites a plan for ZeRO (Rajbhandari et al. 2020, "ZeRO", §5): it shards the units whose gradients are reduced
// along one of some axes over that axis.
//
//   - Stage 1 reduces a unit's gradients once, to shards, as soon as the last micro-batch's are there, updates the
//     rank's shard, and gathers the new parameters.
//   - Stage 2 reduces the gradients of each micro-batch, so that a rank accumulates shards only.
//   - Stage 3 gathers a unit's parameters for each pass that uses them, as many passes early as ahead says, and frees
//     them after it, unless they would be gathered again at once.
//
// In stages 2 and 3 pending is the maximal number of reductions that run beside the passes; with 0 the next pass waits
// for each, which needs the least memory.
func Shard(p *step.Plan, stage, ahead, pending int, axes ...string) *step.Plan {
	q := p.Clone()
	for u, unit := range q.Units {
		among := func(axis string) bool { return slices.Contains(axes, axis) }
		if i := slices.IndexFunc(unit.Reduce, among); i >= 0 {
			q.Units[u].Shard = unit.Reduce[i]
			q.Units[u].Reduce = slices.Concat([]string{unit.Reduce[i]}, unit.Reduce[:i], unit.Reduce[i+1:])
		}
	}
	for r := range q.Ranks {
		reduce(q, r, stage, pending)
		if stage == 3 { // after reduce, so that parameters are freed right after their pass
			gatherAhead(q, r, ahead)
		}
	}
	return q
}

// stretch is a range of passes, by number, for which a unit is gathered. Those of a pair have the same number.
type stretch struct{ unit, first, last int }

// stretches lists, by their first pass, when units are needed on a rank. Two uses of a unit are one stretch if
// gathering it for the second would begin no later than right after the first.
func stretches(p *step.Plan, rank, ahead int) (all []stretch) {
	open := map[int]int{} // by unit: its last stretch
	n, pairs := 0, p.Pairs(rank)
	for i, op := range p.Ranks[rank] {
		if !op.Kind.Pass() || op.Kind == step.Update {
			continue
		}
		for _, u := range p.Blocks[op.Block].Units {
			if p.Units[u].Shard == "" {
				continue
			}
			if at, ok := open[u]; ok && all[at].last >= n-1-ahead {
				all[at].last = n
				continue
			}
			open[u] = len(all)
			all = append(all, stretch{u, n, n})
		}
		if i+1 >= pairs[i].To {
			n++
		}
	}
	return all
}

// gatherAhead gathers each unit before its stretch, as many passes early as ahead says, and frees it after it.
func gatherAhead(p *step.Plan, rank, ahead int) {
	coming, n, pairs := stretches(p, rank, ahead), 0, p.Pairs(rank)
	var open []stretch
	p.Insert(rank, func(i int, op step.Op) (before, behind []step.Op) {
		if !op.Kind.Pass() || op.Kind == step.Update {
			return nil, nil
		}
		for ; len(coming) > 0 && coming[0].first <= n+ahead; coming = coming[1:] {
			open = append(open, coming[0])
			before = append(before, step.Op{Kind: step.Gather, What: step.Parameters, Unit: coming[0].unit,
				Micro: op.Micro, Axis: p.Units[coming[0].unit].Shard})
		}
		if i+1 < pairs[i].To {
			return before, nil
		}
		open = slices.DeleteFunc(open, func(s stretch) bool {
			if s.last == n {
				behind = append(behind, step.Op{Kind: step.Free, What: step.Parameters, Unit: s.unit, Micro: op.Micro})
			}
			return s.last == n
		})
		n++
		return before, behind
	})
}

// reduce reduces each unit's gradients when they are complete, and gathers new parameters in stages 1 and 2.
func reduce(p *step.Plan, rank, stage, pending int) {
	complete := p.Complete(rank)
	var begun []step.Op
	p.Insert(rank, func(i int, op step.Op) (before, behind []step.Op) {
		for _, c := range complete[i] {
			for k, axis := range p.Units[c.Unit].Reduce {
				if !c.Last && (k > 0 || stage == 1) {
					continue
				}
				r := step.Op{Kind: step.Reduce, What: step.Gradient, Unit: c.Unit, Micro: op.Micro, Axis: axis}
				behind = append(behind, r)
				if k > 0 {
					continue
				}
				if begun = append(begun, r); stage > 1 && len(begun) > pending {
					w := begun[0]
					begun = begun[1:]
					w.Kind, w.Of = step.Wait, step.Reduce
					behind = append(behind, w)
				}
			}
		}
		if op.Kind == step.Update && stage < 3 {
			for _, u := range p.UnitsOn(rank) {
				if p.Units[u].Shard != "" {
					behind = append(behind, step.Op{Kind: step.Gather, What: step.Parameters, Unit: u,
						Axis: p.Units[u].Shard, Micro: op.Micro})
				}
			}
		}
		return before, behind
	})
}
