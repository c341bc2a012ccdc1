package step

import (
	"fmt"
	"slices"
)

// Check tells whether the plan can be carried out, loses no gradient, and computes what its [Weights] promise. A plan
// with no messages is checked as [Plan.WithMessages] completes it. Errors say where, and what to do:
//
//   - sizes that cannot be, and operations of blocks, micro-batches, units, axes or ranks that there are not;
//   - a pass that is missing, there twice, or before one that it needs; both a whole backward pass and its halves; a
//     block's passes for one micro-batch on several ranks;
//   - gradients of a block that are not summed in ascending order of micro-batches, in which all plans must do it so
//     that they compute the same;
//   - an update that is missing, comes before a gradient that belongs in it, or behind one that does not: each unit
//     has one after every [Plan].Every micro-batches;
//   - gradients that an update takes before they are reduced along each axis of their unit, or reduced twice along
//     one; a unit whose axes do not join the ranks that have it;
//   - a version of the weights that is needed before it is made, also of gathered parameters that were updated since;
//   - a use of what is not there, such as parameters that are not gathered yet or freed already; what is received,
//     stored, fetched or recomputed for nobody; parameters that are gathered twice or not freed;
//   - ranks that do not do the same along an axis, or do not send what is received, in the same order;
//   - ranks that wait for each other, with the operations at which they do.
func (p *Plan) Check() error {
	_, err := p.checked()
	return err
}

// checked is a plan that can be carried out.
type checked struct {
	*Plan            // with its messages
	flows    []*Flow // of each rank
	versions [][]int // of the plan without them
}

func (p *Plan) checked() (*checked, error) {
	x, err := p.index()
	if err != nil {
		return nil, err
	}
	if err := p.checkInputs(x); err != nil {
		return nil, err
	}
	if err := p.checkUpdates(); err != nil {
		return nil, err
	}
	c := &checked{Plan: p}
	if c.versions, err = p.versionsOf(x); err != nil {
		return nil, err
	}
	if !p.hasMessages() {
		c.Plan = p.withMessages(x)
	}
	if err := c.checkJoined(x.replicas); err != nil {
		return nil, err
	}
	c.flows = make([]*Flow, len(c.Ranks))
	same := map[*Op]*Flow{} // by the first operation of a list, which ranks may share
	for r, list := range c.Ranks {
		if len(list) > 0 && same[&list[0]] != nil && len(same[&list[0]].Done) == len(list) {
			c.flows[r] = same[&list[0]]
			continue
		}
		if c.flows[r], err = c.Flow(r); err == nil {
			err = c.checkRank(r)
		}
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			same[&list[0]] = c.flows[r]
		}
	}
	_, err = play(c.Plan, c.flows, Costs{})
	return c, err
}

func (p *Plan) hasMessages() bool {
	return slices.ContainsFunc(p.Ranks, func(list []Op) bool {
		return slices.ContainsFunc(list, func(op Op) bool { return op.Kind == Send || op.Kind == Recv })
	})
}

// checkInputs looks for passes that come before what they need in the same list.
func (p *Plan) checkInputs(x *index) error {
	for r, list := range p.Ranks {
		for i, op := range list {
			if from, ok := x.input(op, r); ok && int(from.rank) == r && int(from.at) > i {
				return p.errorAt(r, i, "it needs %v, which the rank does later, at position %d: move it behind that",
					p.Text(list[from.at]), from.at)
			}
		}
	}
	return nil
}

// checkUpdates looks at the order of gradients and updates. All gradients are known to be there once.
func (p *Plan) checkUpdates() error {
	for r, list := range p.Ranks {
		units := p.UnitsOn(r)
		next := map[int]int{}    // of each block, the micro-batch that its gradient may be of
		updated := map[int]int{} // of each unit, micro-batches that the updates so far have
		for i, op := range list {
			switch op.Kind {
			case Update:
				for _, u := range op.units(units) {
					due := updated[u] + p.Every - 1
					if !slices.Contains(units, u) {
						return p.errorAt(r, i, "the rank has no block with unit %d: remove it", u)
					}
					if due >= p.Micro {
						return p.errorAt(r, i, "unit %d has had its last update: remove this one", u)
					}
					if op.Micro != due {
						return p.errorAt(r, i, "the next update of the unit is %v, every %d micro-batches",
							p.Text(Op{Kind: Update, Unit: u, Micro: due}), p.Every)
					}
					updated[u] += p.Every
				}
			case Backward, WeightGrad:
				for _, u := range p.Blocks[op.Block].Units {
					update := Op{Kind: Update, Unit: u, Micro: (op.Micro/p.Every+1)*p.Every - 1}
					if op.Micro < updated[u] {
						return p.errorAt(r, i, "the update that its gradient belongs in, %v, came before: move that behind it",
							p.Text(update))
					}
					if update.Micro >= updated[u]+p.Every {
						update.Micro = updated[u] + p.Every - 1
						return p.errorAt(r, i, "its gradient does not belong in the update %v: that must come before", p.Text(update))
					}
				}
				if op.Micro < next[op.Block] {
					return p.errorAt(r, i, "the block's gradient for micro-batch %d came before: sum them in ascending order",
						next[op.Block]-1)
				}
				next[op.Block] = op.Micro + 1
			}
		}
		for _, u := range units {
			if updated[u] != p.Micro {
				return fmt.Errorf("step: rank %d has no update %v: each of its units needs one every %d micro-batches",
					r, p.Text(Op{Kind: Update, Unit: u, Micro: updated[u] + p.Every - 1}), p.Every)
			}
		}
	}
	return nil
}

// units are those of an operation, which may be all that the rank has.
func (op Op) units(all []int) []int {
	if op.Unit < 0 {
		return all
	}
	return []int{op.Unit}
}

// checkJoined looks whether the axes of each unit join all ranks that have it, once each. A unit without axes may be on
// all replicas, as in local SGD, which averages parameters now and then.
func (p *Plan) checkJoined(replicas int) error {
	owners := make([][]int, len(p.Units))
	for r := range p.Ranks {
		for _, u := range p.UnitsOn(r) {
			owners[u] = append(owners[u], r)
		}
	}
	groups := map[string][][]int{} // by axis and rank
	for _, a := range p.Axes {
		of := make([][]int, len(p.Ranks))
		for r := range of {
			of[r] = []int{r}
		}
		for _, g := range a.Groups {
			for _, r := range g {
				of[r] = g
			}
		}
		groups[a.Name] = of
	}
	known := map[string]bool{}
	for u, unit := range p.Units {
		shape := fmt.Sprint(unit.Reduce, setText(owners[u]))
		if known[shape] || len(unit.Reduce) == 0 && len(owners[u]) == replicas {
			continue
		}
		known[shape] = true
		for _, r := range owners[u] {
			reached := []int{r} // the ranks whose gradients come to it
			for _, name := range slices.Backward(unit.Reduce) {
				var more []int
				for _, q := range reached {
					more = append(more, groups[name][q]...)
				}
				reached = more
			}
			if slices.Sort(reached); !slices.Equal(reached, owners[u]) {
				return fmt.Errorf("step: unit %d is on ranks %s, and along %v rank %d gets the gradients of ranks %s: "+
					"let the axes join all that have the unit, once each", u, setText(owners[u]), unit.Reduce, r, setText(reached))
			}
		}
	}
	return nil
}

// unitState is what a rank has of a unit, as its list goes on.
type unitState struct {
	summed  bool // there are gradients that are not reduced
	reduced int  // along how many axes those are that are
	stored  int  // how often its states went to the host more than back
	whole   bool // the parameters are gathered
	old     bool // they have been updated since
}

// checkRank looks at what is reduced, gathered, freed, stored and fetched.
func (c *checked) checkRank(r int) error {
	flow, units := c.flows[r], c.UnitsOn(r)
	states := make([]unitState, len(c.Units))
	for u := range flow.Resident {
		states[u].whole = true
	}
	freed := map[Value]bool{} // activations of which the rank has a shard
	for i, op := range c.Ranks[r] {
		if v := (Value{Held: Input, Block: op.Block, Micro: op.Micro}); op.What == Activation {
			if op.Kind == Gather && !freed[v] {
				return c.errorAt(r, i, "the rank has it whole: free it before, or remove this")
			}
			if op.Kind == Gather || op.Kind == Free {
				freed[v] = op.Kind == Free
			}
		}
		var touched []int
		switch {
		case op.Kind == Update, op.Kind != Wait && !(verb{op.Kind, op.What}).ofBlock():
			touched = op.units(units)
		case op.Kind.Pass():
			touched = c.Blocks[op.Block].Units
		}
		for _, u := range touched {
			if err := states[u].step(op, c.Units[u]); err != nil {
				return c.errorAt(r, i, "%w", err)
			}
		}
		if err := c.checkUsed(flow, i, op); err != nil {
			return c.errorAt(r, i, "%w", err)
		}
	}
	for u, s := range states {
		if s.stored != 0 {
			return fmt.Errorf("step: rank %d does not leave the optimizer's states of unit %d where it finds them: "+
				"let it store them as often as it fetches them", r, u)
		}
		if s.whole && s.old && flow.Resident[u] {
			return fmt.Errorf("step: rank %d has the gathered parameters of unit %d to the end, from before its update: "+
				"gather them behind it, or free them before", r, u)
		}
	}
	return nil
}

// checkUsed refuses to move or make what nobody uses.
func (c *checked) checkUsed(flow *Flow, i int, op Op) error {
	switch op.Kind {
	case Recv, Store, Fetch, Recompute, Gather:
	default:
		return nil
	}
	if op.Kind == Fetch && op.What == Parameters { // a shard, which is gathered then
		return nil
	}
	for _, v := range flow.Unmade[i] {
		if op.Kind != Recompute || v.Held == Saved {
			return fmt.Errorf("nothing uses %v behind it: remove it", c.describe(v))
		}
	}
	return nil
}

// step goes on with an operation.
func (s *unitState) step(op Op, u Unit) error {
	switch {
	case op.Kind == Forward:
		if s.whole && s.old && u.Shard != "" {
			return fmt.Errorf("the gathered parameters are from before the update: gather them again")
		}
	case op.Kind == Backward, op.Kind == WeightGrad:
		s.summed = true
	case op.Kind == Reduce && op.What == Gradient:
		at := slices.Index(u.Reduce, op.Axis)
		switch {
		case at < 0:
			return fmt.Errorf("the unit is reduced along %v, not along %q", u.Reduce, op.Axis)
		case at == 0 && s.reduced > 1:
			return fmt.Errorf("its gradients before are reduced along %q already: reduce all along %q first",
				u.Reduce[1], op.Axis)
		case at > s.reduced:
			return fmt.Errorf("its gradients are not reduced along %q: have that before", u.Reduce[s.reduced])
		case at > 0 && at < s.reduced:
			return fmt.Errorf("its gradients are reduced along %q already: remove it", op.Axis)
		case at > 0 && s.summed:
			return fmt.Errorf("it has gradients that are not reduced along %q: have that before", u.Reduce[0])
		case at == 0:
			s.summed = false
		}
		s.reduced = at + 1
	case op.Kind == Update:
		if len(u.Reduce) > 0 && (s.summed || s.reduced < len(u.Reduce)) {
			return fmt.Errorf("gradients are not reduced along all of %v: have that before", u.Reduce)
		}
		s.summed, s.reduced, s.old = false, 0, true
	case op.Kind == Gather && op.What == Parameters:
		switch {
		case u.Shard == "" || op.Axis != u.Shard:
			return fmt.Errorf("the unit is sharded along %q, not along %q", u.Shard, op.Axis)
		case s.whole && !s.old:
			return fmt.Errorf("the rank has them whole already: free them at the end of the list, or remove this")
		}
		s.whole, s.old = true, false
	case op.Kind == Free && op.What == Parameters:
		s.whole = false
	case op.Kind == Store && op.What == State:
		s.stored++
	case op.Kind == Fetch && op.What == State:
		s.stored--
	}
	return nil
}
