package step

import (
	"errors"
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
//     stored, fetched or recomputed for nobody; parameters that are gathered twice or not freed, or that an update on
//     the host leaves there;
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
	links, err := p.passes()
	if err != nil {
		return nil, err
	}
	c := &checked{Plan: p}
	if c.versions, err = p.versionsOf(links); err != nil {
		return nil, err
	}
	if !p.hasMessages() {
		c.Plan = p.withMessages(links)
	}
	if err := c.checkJoined(links.replicas); err != nil {
		return nil, err
	}
	c.flows = make([]*Flow, len(c.Ranks))
	same := map[*Op]int{} // by the first operation of a list, the first of the ranks that share it
	for r, list := range c.Ranks {
		if len(list) > 0 {
			if q, ok := same[&list[0]]; ok && len(c.Ranks[q]) == len(list) {
				c.flows[r] = c.flows[q]
				continue
			}
			same[&list[0]] = r
		}
		if c.flows[r], err = c.checkRank(r); err != nil {
			return nil, err
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

// units are those of an operation, which may be all that the rank has.
func (op Op) units(all []int) []int {
	if op.Unit < 0 {
		return all
	}
	return []int{op.Unit}
}

// groups has, by axis and rank, the ranks that one is with along an axis; none where it is in no group.
func (p *Plan) groups() map[string][][]int {
	groups := map[string][][]int{}
	for _, a := range p.Axes {
		of := make([][]int, len(p.Ranks))
		for _, g := range a.Groups {
			for _, r := range g {
				of[r] = g
			}
		}
		for r := range of {
			if len(a.Groups) == 0 { // its own devices
				of[r] = []int{r}
			}
		}
		groups[a.Name] = of
	}
	return groups
}

// checkJoined looks whether the axes of each unit join all ranks that have it, once each. A unit without axes between
// ranks may be on all replicas, as in local SGD, which averages parameters now and then.
func (p *Plan) checkJoined(replicas int) error {
	owners := p.owners()
	groups := p.groups()
	known := map[string]bool{}
	for u, unit := range p.Units {
		shape := fmt.Sprint(unit.Reduce, setText(owners[u]))
		apart := !slices.ContainsFunc(unit.Reduce, func(name string) bool { a, _ := p.Axis(name); return len(a.Groups) > 0 })
		if known[shape] || apart && len(owners[u]) == replicas {
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

// checkRank follows a rank's units and values through its list.
func (p *Plan) checkRank(r int) (*Flow, error) {
	list, units, resident := p.Ranks[r], p.UnitsOn(r), p.resident(r)
	states := make([]unitState, len(p.Units))
	for _, u := range units {
		states[u].own, states[u].whole = true, resident[u]
	}
	next := map[int]int{} // of each block, the micro-batch that its gradient may be of
	for i, op := range list {
		if err := p.checkOp(op, next); err != nil {
			return nil, p.errorAt(r, i, "%w", err)
		}
		for _, u := range p.touched(op, units) {
			if err := states[u].step(p, op, u); err != nil {
				return nil, p.errorAt(r, i, "%w", err)
			}
		}
	}
	for u := range states {
		if err := states[u].end(p, u, resident[u]); err != nil {
			return nil, fmt.Errorf("step: rank %d %w", r, err)
		}
	}
	flow, err := p.Flow(r)
	if err != nil {
		return nil, err
	}
	for i, op := range list {
		for _, v := range flow.Unmade[i] {
			if wasted(op, v) {
				return nil, p.errorAt(r, i, "nothing uses %v behind it: remove it", p.describe(v))
			}
		}
	}
	return flow, nil
}

// wasted tells whether an operation moves or makes what nobody uses in vain. A pass may make such.
func wasted(op Op, v Value) bool {
	switch op.Kind {
	case Recv, Store, Gather:
		return true
	case Fetch:
		return op.What != Parameters // which the next step uses
	}
	return op.Kind == Recompute && v.Held == Saved
}

// touched are the units that an operation is of, or whose parameters it uses.
func (p *Plan) touched(op Op, units []int) []int {
	switch v := (verb{op.Kind, op.What}); {
	case op.Kind == Wait:
		return nil
	case !v.ofBlock():
		return op.units(units)
	case op.Kind.Pass():
		return p.Blocks[op.Block].Units
	}
	return nil
}

// checkOp looks at the order of a block's gradients.
func (p *Plan) checkOp(op Op, next map[int]int) error {
	switch {
	case op.Kind == HostUpdate && p.Weights != Flush:
		return fmt.Errorf("the weights are %q, and passes of other micro-batches go on beside it: update on the device",
			p.Weights)
	case op.Kind == Backward, op.Kind == WeightGrad:
		if op.Micro < next[op.Block] {
			return fmt.Errorf("the block's gradient for micro-batch %d came before: sum them in ascending order",
				next[op.Block]-1)
		}
		next[op.Block] = op.Micro + 1
	}
	return nil
}

// unitState is what a rank has of a unit, as its list goes on.
type unitState struct {
	own     bool // it is of the rank's blocks
	updated int  // micro-batches that its updates so far have
	summed  bool // there are gradients that are not reduced
	reduced int  // along how many axes those are that are
	stored  int  // how often its states went to the host more than back
	whole   bool // the parameters are gathered
	old     bool // they have been updated since
	away    bool // its gradients are in the host's memory
	fresh   bool // its new parameters are
}

// next is the next update of a unit.
func (s *unitState) next(p *Plan, u int) Op {
	return Op{Kind: Update, Unit: u, Micro: s.updated + p.Every - 1}
}

// step goes on with an operation.
func (s *unitState) step(p *Plan, op Op, u int) error {
	unit := p.Units[u]
	switch (verb{op.Kind, op.What}) {
	case verb{Forward, 0}:
		if s.whole && s.old && unit.Shard != "" {
			return errors.New("the gathered parameters are from before the update: gather them again")
		}
	case verb{Backward, 0}, verb{WeightGrad, 0}:
		if s.summed = true; s.away {
			return fmt.Errorf("the gradients of unit %d are in the host's memory: store them behind this", u)
		}
		if op.Micro < s.updated {
			return fmt.Errorf("an update of unit %d that its gradient belongs in came before: move that behind it", u)
		}
		if op.Micro >= s.updated+p.Every {
			return fmt.Errorf("its gradient does not belong in the update %v: that must come before", p.Text(s.next(p, u)))
		}
	case verb{Update, 0}, verb{HostUpdate, 0}:
		return s.update(p, op, u)
	case verb{Reduce, Gradient}:
		return s.reduce(unit.Reduce, op.Axis)
	case verb{Gather, Parameters}:
		if unit.Shard == "" || op.Axis != unit.Shard {
			return fmt.Errorf("the unit is sharded along %q, not along %q", unit.Shard, op.Axis)
		}
		if s.whole && !s.old {
			return errors.New("the rank has them whole already: free them at the end of the list, or remove this")
		}
		if s.fresh {
			return errors.New("its new parameters are in the host's memory: fetch them before")
		}
		s.whole, s.old = true, false
	case verb{Free, Parameters}:
		s.whole = false
	case verb{Store, Gradient}, verb{Fetch, Gradient}:
		s.away = op.Kind == Store
	case verb{Fetch, Parameters}:
		s.fresh = false
	case verb{Store, State}:
		s.stored++
	case verb{Fetch, State}:
		s.stored--
	}
	return nil
}

func (s *unitState) update(p *Plan, op Op, u int) error {
	due, axes := s.next(p, u), p.Units[u].Reduce
	if due.Micro >= p.Micro {
		return fmt.Errorf("unit %d has had its last update: remove this one", u)
	}
	if op.Micro != due.Micro {
		return fmt.Errorf("the next update of the unit is %v, every %d micro-batches", p.Text(due), p.Every)
	}
	if len(axes) > 0 && (s.summed || s.reduced < len(axes)) {
		return fmt.Errorf("gradients are not reduced along all of %v: have that before", axes)
	}
	s.updated, s.summed, s.reduced, s.old = s.updated+p.Every, false, 0, true
	s.away, s.fresh = false, op.Kind == HostUpdate
	return nil
}

// reduce has gradients reduced along an axis: along the first as often as there are new ones, along the others in their
// order, all of them once.
func (s *unitState) reduce(axes []string, axis string) error {
	at := slices.Index(axes, axis)
	switch {
	case at < 0:
		return fmt.Errorf("the unit is reduced along %v, not along %q", axes, axis)
	case at > s.reduced, at > 0 && s.summed:
		return fmt.Errorf("it has gradients that are not reduced along %q: have that before", axes[at-1])
	case at > 0 && at < s.reduced, at == 0 && s.reduced > 1:
		return fmt.Errorf("its gradients before are reduced along %q already: remove it, or have it before",
			axes[s.reduced-1])
	}
	s.summed, s.reduced = s.summed && at > 0, at+1
	return nil
}

// end looks at what is left of a unit at the end of the list.
func (s *unitState) end(p *Plan, u int, resident bool) error {
	switch {
	case s.own && s.updated != p.Micro:
		return fmt.Errorf("has no update %v: each of its units needs one every %d micro-batches",
			p.Text(s.next(p, u)), p.Every)
	case s.stored != 0:
		return fmt.Errorf("does not leave the optimizer's states of unit %d where it finds them: "+
			"let it store them as often as it fetches them", u)
	case s.fresh:
		return fmt.Errorf("leaves the new parameters of unit %d in the host's memory: have it fetch them", u)
	case s.whole && s.old && resident:
		return fmt.Errorf("has the gathered parameters of unit %d to the end, from before its update: "+
			"gather them behind it, or free them before", u)
	}
	return nil
}
