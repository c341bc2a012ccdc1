package offload

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Inputs writes into a plan that the inputs of blocks lie in the host's memory between their forward pass and what needs
// them next: they go down behind the forward pass, and come up ahead passes before (vDNN, Rhu et al. 2016, §III; of blocks
// that are computed again P_a+cpu, Rajbhandari et al. 2020, "ZeRO", §6.1). At most ahead of them are on their way down
// while passes go on. Those of a block whose next pass follows at once stay.
func Inputs(p *step.Plan, ahead int) *step.Plan {
	q := p.Clone()
	for r, list := range p.Ranks {
		passes := slices.DeleteFunc(slices.Clone(list), func(op step.Op) bool { return !op.Kind.Pass() })
		stored, fetched := map[int]bool{}, map[int][]step.Op{} // by number of the pass
		for n, op := range passes {
			if op.Kind != step.Forward {
				continue
			}
			next := slices.IndexFunc(passes[n+1:], func(other step.Op) bool {
				return other.Kind != step.Update && other.Block == op.Block && other.Micro == op.Micro
			})
			if next < 1 { // there is none, or it follows at once
				continue
			}
			stored[n] = true
			at := max(n+1, n+1+next-ahead)
			fetched[at] = append(fetched[at], move(step.Fetch, op))
		}
		n := -1
		var leaving []step.Op
		q.Insert(r, func(_ int, op step.Op) (before, behind []step.Op) {
			if !op.Kind.Pass() {
				return nil, nil
			}
			n++
			if before = fetched[n]; !stored[n] {
				return before, nil
			}
			behind = append(behind, move(step.Store, op))
			if leaving = append(leaving, move(step.Store, op)); len(leaving) > ahead {
				w := leaving[0]
				leaving = leaving[1:]
				w.Kind, w.Of = step.Wait, step.Store
				behind = append(behind, w)
			}
			return before, behind
		})
	}
	return q
}

func move(kind step.Kind, of step.Op) step.Op {
	return step.Op{Kind: kind, What: step.Activation, Block: of.Block, Micro: of.Micro}
}

// States writes into a plan that the optimizer's states lie in the host's memory: each unit is updated by itself, as soon as
// its gradients are complete, with its states fetched ahead passes before and stored behind it. Gradients then live for one
// unit only. The plan has one update, of all units; where the gradients of all must be known before, as for clipping, it
// cannot be split.
func States(p *step.Plan, ahead int) *step.Plan {
	q := p.Clone()
	for r := range q.Ranks {
		complete := q.Complete(r)
		updated, fetched := map[int][]int{}, map[int][]int{} // units, by number of the pass behind, or before, which
		n := 0
		for i, op := range q.Ranks[r] {
			if !op.Kind.Pass() {
				continue
			}
			for _, c := range complete[i] {
				if c.Last {
					updated[n], fetched[max(0, n-ahead)] = append(updated[n], c.Unit), append(fetched[max(0, n-ahead)], c.Unit)
				}
			}
			n++
		}
		q.Ranks[r] = slices.DeleteFunc(q.Ranks[r], func(op step.Op) bool { return op.Kind == step.Update })
		n = -1
		var leaving []step.Op
		q.Insert(r, func(_ int, op step.Op) (before, behind []step.Op) {
			if !op.Kind.Pass() {
				return nil, nil
			}
			n++
			for _, u := range fetched[n] {
				before = append(before, step.Op{Kind: step.Fetch, What: step.State, Unit: u})
			}
			for _, u := range updated[n] {
				behind = append(behind, step.Op{Kind: step.Update, Unit: u, Micro: q.Micro - 1},
					step.Op{Kind: step.Store, What: step.State, Unit: u})
				w := step.Op{Kind: step.Wait, Of: step.Store, What: step.State, Unit: u}
				if leaving = append(leaving, w); len(leaving) > ahead {
					behind, leaving = append(behind, leaving[0]), leaving[1:]
				}
			}
			return before, behind
		})
	}
	return q
}

// Updates writes into a plan that the host updates, in whose memory the optimizer's states and a master copy of the
// parameters always are (Ren et al. 2021, "ZeRO-Offload", §4.1): a unit's gradients go down as soon as they are complete,
// and its new parameters come up behind its update. With each, a unit is updated when its gradients have come, while
// passes of other blocks go on; else all are at once, in the place of the plan's own update, as clipping and loss scaling
// need it, which ask something of all gradients. At most ahead units' gradients are on their way down while passes go on.
// Those that several stages of a pipeline have in common go behind all passes: others may wait for these.
func Updates(p *step.Plan, each bool, ahead int) *step.Plan {
	q := p.Clone()
	for r, list := range p.Ranks {
		complete := map[int][]int{} // units, by the position behind which their gradients go down
		update := slices.IndexFunc(list, func(op step.Op) bool { return op.Kind == step.Update })
		for _, u := range p.UnitsOn(r) {
			last := update - 1
			for i := range list {
				if !spans(p, r, u) && adds(p, list[i], u) {
					last = i
				}
			}
			complete[last] = append(complete[last], u)
		}
		of := func(kind step.Kind, what step.What, unit int) step.Op {
			return step.Op{Kind: kind, What: what, Unit: unit, Micro: p.Micro - 1}
		}
		var leaving []step.Op
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			for _, u := range complete[i] {
				behind = append(behind, of(step.Store, step.Gradient, u))
				if each {
					behind = append(behind, of(step.HostUpdate, 0, u), of(step.Fetch, step.Parameters, u))
				}
				wait := of(step.Wait, step.Gradient, u)
				wait.Of = step.Store
				if leaving = append(leaving, wait); len(leaving) > ahead && i < update-1 {
					behind, leaving = append(behind, leaving[0]), leaving[1:]
				}
			}
			if op.Kind == step.Update && !each {
				before = append(before, of(step.HostUpdate, 0, op.Unit))
				for _, u := range p.UnitsOn(r) {
					if op.Unit < 0 || op.Unit == u {
						before = append(before, of(step.Fetch, step.Parameters, u))
					}
				}
			}
			return before, behind
		})
		q.Ranks[r] = slices.DeleteFunc(q.Ranks[r], func(op step.Op) bool { return op.Kind == step.Update })
	}
	return q
}

// adds says whether an operation adds to a unit's gradients, or reduces them.
func adds(p *step.Plan, op step.Op, unit int) bool {
	switch op.Kind {
	case step.Backward, step.WeightGrad:
		return slices.Contains(p.Blocks[op.Block].Units, unit)
	}
	return op.Kind == step.Reduce && op.What == step.Gradient && op.Unit == unit
}

// spans says whether a unit's gradients are reduced with ranks that have other blocks.
func spans(p *step.Plan, rank, unit int) bool {
	return slices.ContainsFunc(p.Units[unit].Reduce, func(name string) bool {
		a, _ := p.Axis(name)
		return slices.ContainsFunc(a.Group(rank), func(q int) bool { return !slices.Equal(p.On(q), p.On(rank)) })
	})
}
