package offload

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Inputs rewrites a plan so that the inputs of blocks are in host memory between their passes: they are stored after
// the forward pass, and fetched for the next use, as many passes early as ahead says (vDNN, Rhu et al. 2016, §III; for
// recomputed blocks P_a+cpu, Rajbhandari et al. 2020, "ZeRO", §6.1). At most that many stores run beside the passes.
// Inputs of blocks whose next pass follows at once stay on the device, and those that are recomputed are not stored.
func Inputs(p *step.Plan, ahead int) *step.Plan {
	q := p.Clone()
	for r, list := range p.Ranks {
		number, first := passes(p, r)
		stored, fetched := map[int]bool{}, map[int][]step.Op{} // by position in the list
		for i, op := range list {
			if op.Kind != step.Forward {
				continue
			}
			next := i + 1 + slices.IndexFunc(list[i+1:], func(other step.Op) bool {
				return other.Kind.Pass() && other.Kind != step.Update && other.Block == op.Block &&
					other.Micro == op.Micro
			})
			again := func(other step.Op) bool { // makes the input once more
				return other.Kind == step.Recompute && other.Block == op.Block-1 && other.Micro == op.Micro
			}
			if number[next] <= number[i]+1 || // no next pass, or it follows at once
				slices.ContainsFunc(list[i:next], again) {
				continue
			}
			stored[i] = true
			at := first[max(number[i]+1, number[next]-ahead)]
			fetched[at] = append(fetched[at], move(step.Fetch, op))
		}
		stores := queue{ahead: ahead}
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			if stored[i] {
				behind = stores.begin(move(step.Store, op))
			}
			return fetched[i], behind
		})
	}
	return q
}

// passes numbers the passes of a list without updates, by position, and returns the position where each begins. A
// block's recomputation right before its backward pass is one pass with it: they are one program, and nothing comes
// between. So are the passes of a pair.
func passes(p *step.Plan, rank int) (number map[int]int, first []int) {
	list, pairs := p.Ranks[rank], p.Pairs(rank)
	number = map[int]int{}
	for i, op := range list {
		if !op.Kind.Pass() || op.Kind == step.Update {
			continue
		}
		again := i > 0 && list[i-1].Kind == step.Recompute && list[i-1].Block == op.Block && list[i-1].Micro == op.Micro
		if !again && (pairs[i].To == 0 || pairs[i].From == i) {
			first = append(first, i)
		}
		number[i] = len(first) - 1
	}
	return number, first
}

func move(kind step.Kind, of step.Op) step.Op {
	return step.Op{Kind: kind, What: step.Activation, Block: of.Block, Micro: of.Micro}
}

// UpdateAtOnce rewrites a plan so that each unit is updated as soon as its gradients are complete, not at the end, so
// that the gradients of one unit exist at a time (Lv et al. 2023, "Full Parameter Fine-Tuning for Large Language Models
// with Limited Resources", §3.1). Gradient clipping and loss scaling, which need all gradients, are not possible then.
// Units that several pipeline stages share are updated at the end, since other stages may wait for these.
func UpdateAtOnce(p *step.Plan) *step.Plan {
	q := p.Clone()
	for r := range p.Ranks {
		complete := completing(p, r)
		q.Insert(r, func(i int, _ step.Op) (_, behind []step.Op) {
			for _, u := range complete[i] {
				behind = append(behind, step.Op{Kind: step.Update, Unit: u, Micro: p.Micro - 1})
			}
			return nil, behind
		})
		q.Ranks[r] = slices.DeleteFunc(q.Ranks[r],
			func(op step.Op) bool { return op.Kind == step.Update && op.Unit < 0 })
	}
	return q
}

// States rewrites a plan so that optimizer states are in host memory: each unit is updated as soon as its gradients are
// complete, with its states fetched before, as many passes early as ahead says, and stored after it. At most that many
// stores run beside the passes.
func States(p *step.Plan, ahead int) *step.Plan {
	q := UpdateAtOnce(p)
	for r, list := range q.Ranks {
		number, first := passes(q, r)
		fetched := map[int][]step.Op{} // by position in the list
		last := -1                     // pass
		for i, op := range list {
			if n, ok := number[i]; ok {
				last = n
			}
			if op.Kind != step.Update {
				continue
			}
			at := i
			if ahead > 0 {
				at = first[max(0, last+1-ahead)]
			}
			fetched[at] = append(fetched[at], step.Op{Kind: step.Fetch, What: step.State, Unit: op.Unit})
		}
		stores := queue{ahead: ahead}
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			if op.Kind == step.Update {
				behind = stores.begin(step.Op{Kind: step.Store, What: step.State, Unit: op.Unit})
			}
			return fetched[i], behind
		})
	}
	return q
}

// Updates rewrites a plan so that the host updates, with the optimizer states and master weights in its memory (Ren et
// al. 2021, "ZeRO-Offload", §4.1): a unit's gradients are stored as soon as they are complete, the host updates where
// the plan has an update, and the new parameters are fetched. After [UpdateAtOnce] all of this runs beside the passes
// of other blocks. Ahead is the maximal number of stores that run beside the passes.
func Updates(p *step.Plan, ahead int) *step.Plan {
	q := p.Clone()
	for r := range p.Ranks {
		complete, stores := completing(p, r), queue{ahead: ahead}
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			if op.Kind == step.Update {
				before = append(before, step.Op{Kind: step.HostUpdate, Unit: op.Unit, Micro: op.Micro})
				for _, u := range p.UnitsOn(r) {
					if op.Unit < 0 || op.Unit == u {
						before = append(before, step.Op{Kind: step.Fetch, What: step.Parameters, Unit: u,
							Micro: op.Micro})
					}
				}
			}
			for _, u := range complete[i] {
				store := step.Op{Kind: step.Store, What: step.Gradient, Unit: u, Micro: p.Micro - 1}
				if spans(p, r, u) {
					behind = append(behind, store)
				} else {
					behind = append(behind, stores.begin(store)...)
				}
			}
			return before, behind
		})
		q.Ranks[r] = slices.DeleteFunc(q.Ranks[r], func(op step.Op) bool { return op.Kind == step.Update })
	}
	return q
}

// queue bounds how many operations are under way beside the passes.
type queue struct {
	ahead int
	begun []step.Op
}

// begin returns an operation, and the wait for an earlier one if there are too many.
func (q *queue) begin(op step.Op) []step.Op {
	if q.begun = append(q.begun, op); len(q.begun) <= q.ahead {
		return []step.Op{op}
	}
	w := q.begun[0]
	q.begun = q.begun[1:]
	w.Kind, w.Of = step.Wait, w.Kind
	return []step.Op{op, w}
}

// completing returns, by position in a rank's list, the units whose gradients are complete, and reduced if they need to
// be, after the operation there. Units that other stages share come last, after all passes.
func completing(p *step.Plan, rank int) map[int][]int {
	list, at := p.Ranks[rank], map[int][]int{}
	var late []int
	end := 0
	for _, u := range p.UnitsOn(rank) {
		last := 0
		for i, op := range list {
			adds := op.Kind == step.Backward || op.Kind == step.WeightGrad
			if reduces := op.Kind == step.Reduce && op.What == step.Gradient; adds || reduces {
				end = max(end, i)
				if reduces && op.Unit == u || adds && slices.Contains(p.Blocks[op.Block].Units, u) {
					last = i
				}
			}
		}
		if spans(p, rank, u) {
			late = append(late, u)
		} else {
			at[last] = append(at[last], u)
		}
	}
	at[end] = append(at[end], late...)
	return at
}

// spans reports whether a unit's gradients are reduced with ranks that have other blocks.
func spans(p *step.Plan, rank, unit int) bool {
	return slices.ContainsFunc(p.Units[unit].Reduce, func(name string) bool {
		a, _ := p.Axis(name)
		return slices.ContainsFunc(a.Group(rank), func(q int) bool { return !slices.Equal(p.On(q), p.On(rank)) })
	})
}
