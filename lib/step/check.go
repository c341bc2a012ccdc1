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
	replicas, err := p.passes()
	if err != nil {
		return nil, err
	}
	c := &checked{Plan: p}
	if c.versions, err = p.versionsOf(); err != nil {
		return nil, err
	}
	if !p.hasMessages() {
		c.Plan = p.withMessages(replicas)
	}
	if err := c.checkJoined(replicas); err != nil {
		return nil, err
	}
	c.flows = make([]*Flow, len(c.Ranks))
	for r, list := range c.Ranks {
		same := slices.IndexFunc(c.Ranks[:r], func(other []Op) bool { return slices.Equal(list, other) })
		if same >= 0 { // as those of replicas are
			c.flows[r] = c.flows[same]
			continue
		}
		f, err := c.follow(r)
		if err == nil {
			err = f.checkEnd(r)
		}
		if err != nil {
			return nil, err
		}
		c.flows[r] = &f.Flow
	}
	_, err = c.play(Costs{})
	return c, err
}

func (p *Plan) hasMessages() bool {
	return slices.ContainsFunc(p.Ranks, func(list []Op) bool { return slices.ContainsFunc(list, Op.isMessage) })
}

// checkJoined looks whether the axes of each unit join all ranks that have it, once each. A unit without axes between
// ranks may be on all replicas, as in local SGD, which averages parameters now and then.
func (p *Plan) checkJoined(replicas int) error {
	known := map[string]bool{}
	for u, have := range p.owners() {
		axes := p.Units[u].Reduce
		shape := fmt.Sprint(axes, setText(have))
		apart := !slices.ContainsFunc(axes, func(name string) bool { a, _ := p.Axis(name); return len(a.Groups) > 0 })
		if known[shape] || apart && len(have) == replicas {
			continue
		}
		known[shape] = true
		for _, r := range have {
			if reached := p.reached(u, r); !slices.Equal(reached, have) {
				return fmt.Errorf("step: unit %d is on ranks %s, and along %v rank %d gets the gradients of ranks %s: "+
					"let the axes join all that have the unit, once each", u, setText(have), axes, r, setText(reached))
			}
		}
	}
	return nil
}

// reached are the ranks whose gradients of a unit come to a rank, in ascending order.
func (p *Plan) reached(unit, rank int) []int {
	ranks := []int{rank}
	for _, name := range slices.Backward(p.Units[unit].Reduce) {
		var more []int
		for _, r := range ranks {
			a, _ := p.Axis(name)
			more = append(more, a.Group(r)...)
		}
		ranks = more
	}
	slices.Sort(ranks)
	return ranks
}

// unitState is what a rank's list has done with a unit so far.
type unitState struct {
	updates int
	at      int // position of the last update, or -1
	reduced int // axes along which the gradients are reduced that the next update takes
}

// due is the next update of a unit.
func (f *flow) due(u int) Op {
	return Op{Kind: Update, Unit: u, Micro: f.state[u].updates*f.Every + f.Every - 1}
}

// ofUnit is a value of a unit. Reduced is what goes into an update: of a unit that is not reduced the sum.
func (p *Plan) ofUnit(held Held, u int, host bool) Value {
	if held == Reduced && len(p.Units[u].Reduce) == 0 {
		held = Sum
	}
	return Value{Held: held, Unit: u, Host: host}
}

// has tells whether the rank has a value of a unit, and old whether it has its parameters from before an update.
func (f *flow) has(held Held, u int, host bool) bool { return f.there[f.ofUnit(held, u, host)] != nil }

func (f *flow) old(u int) bool {
	whole := f.there[Value{Held: Full, Unit: u}]
	return whole != nil && whole.at < f.state[u].at
}

// checkOp tells whether an operation may follow those before it, which the values that it uses do not tell.
func (f *flow) checkOp(i int, op Op, units []int) error {
	switch op.Kind {
	case HostUpdate:
		if f.Weights != Flush {
			return fmt.Errorf("the weights are %q, and passes of other micro-batches go on beside it: update on the device",
				f.Weights)
		}
	case Backward, WeightGrad:
		if op.Micro < f.next[op.Block] {
			return fmt.Errorf("the block's gradient for micro-batch %d came before: sum them in ascending order",
				f.next[op.Block]-1)
		}
		f.next[op.Block] = op.Micro + 1
	}
	for _, u := range units {
		if err := f.checkUnit(i, op, u); err != nil {
			return err
		}
	}
	return nil
}

func (f *flow) checkUnit(i int, op Op, u int) error {
	unit, s, due := f.Units[u], &f.state[u], f.due(u)
	switch op.verb() {
	case verb{Forward, 0}:
		if f.old(u) && unit.Shard != "" {
			return errors.New("the gathered parameters are from before the update: gather them again")
		}
	case verb{Backward, 0}, verb{WeightGrad, 0}:
		switch {
		case f.has(Reduced, u, true):
			return fmt.Errorf("the gradients of unit %d are in the host's memory: store them behind this", u)
		case op.Micro <= due.Micro-f.Every:
			return fmt.Errorf("an update of unit %d that its gradient belongs in came before: move that behind it", u)
		case op.Micro > due.Micro:
			return fmt.Errorf("its gradient does not belong in the update %v: that must come before", f.Text(due))
		}
	case verb{Update, 0}, verb{HostUpdate, 0}:
		switch {
		case due.Micro >= f.Micro:
			return fmt.Errorf("unit %d has had its last update: remove this one", u)
		case op.Micro != due.Micro:
			return fmt.Errorf("the next update of the unit is %v, every %d micro-batches", f.Text(due), f.Every)
		case len(unit.Reduce) > 0 && (f.has(Sum, u, false) || s.reduced < len(unit.Reduce)):
			return fmt.Errorf("gradients are not reduced along all of %v: have that before", unit.Reduce)
		}
		s.updates, s.reduced, s.at = s.updates+1, 0, i
	case verb{Reduce, Gradient}:
		return f.checkReduce(op, u)
	case verb{Gather, Parameters}:
		if unit.Shard == "" || op.Axis != unit.Shard {
			return fmt.Errorf("the unit is sharded along %q, not along %q", unit.Shard, op.Axis)
		}
		if f.has(Full, u, false) && !f.old(u) {
			return errors.New("the rank has them whole already: free them at the end of the list, or remove this")
		}
	}
	return nil
}

// checkReduce has gradients reduced along an axis: along the first as often as there are new ones, along the others in
// their order, all of them once.
func (f *flow) checkReduce(op Op, u int) error {
	axes, s, summed := f.Units[u].Reduce, &f.state[u], f.has(Sum, u, false)
	at := slices.Index(axes, op.Axis)
	switch {
	case at < 0:
		return fmt.Errorf("the unit is reduced along %v, not along %q", axes, op.Axis)
	case at > s.reduced, at > 0 && summed:
		return fmt.Errorf("it has gradients that are not reduced along %q: have that before", axes[at-1])
	case at > 0 && at < s.reduced, at == 0 && s.reduced > 1:
		return fmt.Errorf("its gradients before are reduced along %q already: remove it, or have it before",
			axes[s.reduced-1])
	}
	s.reduced = at + 1
	return nil
}

// checkEnd looks at what the list leaves behind, and at what nobody has used.
func (f *flow) checkEnd(rank int) error {
	for _, u := range f.units {
		if due := f.due(u); due.Micro < f.Micro {
			return fmt.Errorf("step: rank %d has no update %v: each of its units needs one every %d micro-batches", rank,
				f.Text(due), f.Every)
		}
	}
	for _, m := range f.all {
		switch last := f.there[m.Value]; {
		case m.Held == States && m.at < 0 && last == nil:
			return fmt.Errorf("step: rank %d does not leave the optimizer's states of unit %d where it finds them: "+
				"let it store them as often as it fetches them", rank, m.Unit)
		case m.Held == Fresh && m.Host && last == m:
			return fmt.Errorf("step: rank %d leaves the new parameters of unit %d in the host's memory: have it fetch them",
				rank, m.Unit)
		case m.Held == Full && f.Resident[m.Unit] && f.old(m.Unit):
			return fmt.Errorf("step: rank %d has the gathered parameters of unit %d to the end, from before its update: "+
				"gather them behind it, or free them before", rank, m.Unit)
		case m.never && f.list[m.at].wastes(m.Held):
			return f.errorAt(rank, m.at, "nothing uses %v behind it: remove it", f.describe(m.Value))
		}
	}
	return nil
}

// wastes tells whether an operation does in vain what nobody uses. A pass may make such.
func (op Op) wastes(held Held) bool {
	switch op.Kind {
	case Recv, Store, Fetch, Gather:
		return true
	}
	return op.Kind == Recompute && held == Saved
}
