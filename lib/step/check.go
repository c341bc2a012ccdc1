package step

import (
	"errors"
	"fmt"
	"slices"
)

// Check proves that the plan can run, loses no gradient, and uses the versions of the weights that its [Weights]
// promise. A plan without messages is checked as [Plan.WithMessages] completes it. Errors name the rank, the position
// and what to change:
//
//   - invalid sizes; a block, micro-batch, unit, axis or rank that does not exist;
//   - a pass that is missing, repeated, or before one that it needs; both Backward and InputGrad or WeightGrad; the
//     passes of a block for one micro-batch on several ranks;
//   - gradients of a block that are not accumulated in ascending order of micro-batches, the order that makes all plans
//     compute the same bits;
//   - an update that is missing, too early or too late: each unit is updated after every [Plan].Every micro-batches;
//   - gradients that an update uses before they are reduced along each axis of their unit, or that are reduced twice; a
//     unit whose axes do not join all ranks that have it;
//   - a version of the weights that is used before it exists, or gathered parameters from before an update;
//   - an operation that uses what is not there, such as parameters that are not gathered; a value that is received,
//     stored, fetched or recomputed and not used; parameters that are gathered twice or never freed;
//   - ranks of a group, or sender and receiver, that do not communicate the same in the same order;
//   - a deadlock, with the operations at which the ranks wait.
func (p *Plan) Check() error {
	_, err := p.checked()
	return err
}

// checked is a plan that passed [Plan.Check].
type checked struct {
	*Plan            // including messages
	flows    []*Flow // by rank
	versions [][]int // of the plan without messages
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
		if same >= 0 { // replicas have equal lists
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

// checkJoined checks that the axes of each unit join all ranks that have it, once each. A unit without axes between
// ranks may be on all replicas: local SGD averages its parameters now and then.
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

// reached returns the ranks whose gradients of a unit are reduced into a rank's, in ascending order.
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
	reduced int // axes along which the gradients for the next update are reduced
}

// due returns the next update of a unit.
func (f *flow) due(u int) Op {
	return Op{Kind: Update, Unit: u, Micro: f.state[u].updates*f.Every + f.Every - 1}
}

// ofUnit returns a value of a unit. For a unit that is not reduced, Reduced is Sum.
func (p *Plan) ofUnit(held Held, u int, host bool) Value {
	if held == Reduced && len(p.Units[u].Reduce) == 0 {
		held = Sum
	}
	return Value{Held: held, Unit: u, Host: host}
}

// has reports whether the rank has a value of a unit.
func (f *flow) has(held Held, u int, host bool) bool { return f.there[f.ofUnit(held, u, host)] != nil }

// old reports whether the unit's gathered parameters are from before its last update.
func (f *flow) old(u int) bool {
	full := f.there[Value{Held: Full, Unit: u}]
	return full != nil && full.at < f.state[u].at
}

// checkOp checks what the values that an operation uses do not tell.
func (f *flow) checkOp(i int, op Op, units []int) error {
	switch op.Kind {
	case HostUpdate:
		if f.Weights != Flush {
			return fmt.Errorf("with weights %q, passes of other micro-batches run at the same time: update on the "+
				"device", f.Weights)
		}
	case Backward, WeightGrad:
		if op.Micro < f.next[op.Block] {
			return fmt.Errorf("the block's gradient for micro-batch %d came before: accumulate them in ascending order",
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
			return fmt.Errorf("the gradients of unit %d are in host memory: store them after this", u)
		case op.Micro <= due.Micro-f.Every:
			return fmt.Errorf("the update of unit %d that needs its gradient came before: move the update after it", u)
		case op.Micro > due.Micro:
			return fmt.Errorf("its gradient belongs to a later update than %v: move that update before it", f.Text(due))
		}
	case verb{Update, 0}, verb{HostUpdate, 0}:
		switch {
		case due.Micro >= f.Micro:
			return fmt.Errorf("unit %d has had its last update: remove this one", u)
		case op.Micro != due.Micro:
			return fmt.Errorf("the next update of the unit is %v, every %d micro-batches", f.Text(due), f.Every)
		case len(unit.Reduce) > 0 && (f.has(Sum, u, false) || s.reduced < len(unit.Reduce)):
			return fmt.Errorf("gradients are not reduced along all of %v: reduce them before", unit.Reduce)
		}
		s.updates, s.reduced, s.at = s.updates+1, 0, i
	case verb{Reduce, Gradient}:
		return f.checkReduce(op, u)
	case verb{Gather, Parameters}:
		if unit.Shard == "" || op.Axis != unit.Shard {
			return fmt.Errorf("the unit is sharded along %q, not along %q", unit.Shard, op.Axis)
		}
		if f.has(Full, u, false) && !f.old(u) {
			return errors.New("the rank has gathered them already: free them at the end of the list, or remove this")
		}
	}
	return nil
}

// checkReduce checks the order of reductions: along the first axis as often as there are new gradients, then along each
// other axis once, in the unit's order.
func (f *flow) checkReduce(op Op, u int) error {
	axes, s, summed := f.Units[u].Reduce, &f.state[u], f.has(Sum, u, false)
	at := slices.Index(axes, op.Axis)
	switch {
	case at < 0:
		return fmt.Errorf("the unit is reduced along %v, not along %q", axes, op.Axis)
	case at > s.reduced, at > 0 && summed:
		return fmt.Errorf("it has gradients that are not reduced along %q: reduce them along that axis before",
			axes[at-1])
	case at > 0 && at < s.reduced, at == 0 && s.reduced > 1:
		return fmt.Errorf("earlier gradients are reduced along %q already: remove this reduction, or move it before "+
			"that one", axes[s.reduced-1])
	}
	s.reduced = at + 1
	return nil
}

// checkEnd checks what the list leaves behind, and what it makes and never uses.
func (f *flow) checkEnd(rank int) error {
	for _, u := range f.units {
		if due := f.due(u); due.Micro < f.Micro {
			return fmt.Errorf("step: rank %d has no update %v: each of its units needs one every %d micro-batches",
				rank, f.Text(due), f.Every)
		}
	}
	for _, m := range f.all {
		switch last := f.there[m.Value]; {
		case m.Held == States && m.at < 0 && last == nil:
			return fmt.Errorf("step: rank %d moves the optimizer's states of unit %d and does not move them back: "+
				"store them as often as it fetches them", rank, m.Unit)
		case m.Held == Fresh && m.Host && last == m:
			return fmt.Errorf("step: rank %d leaves the new parameters of unit %d in host memory: fetch them",
				rank, m.Unit)
		case m.Held == Full && f.Resident[m.Unit] && f.old(m.Unit):
			return fmt.Errorf("step: rank %d ends with gathered parameters of unit %d from before its update: "+
				"gather them after the update, or free them before", rank, m.Unit)
		case m.never && f.list[m.at].wastes(m.Held):
			return f.errorAt(rank, m.at, "nothing uses %v after it: remove it", f.describe(m.Value))
		}
	}
	return nil
}

// wastes reports whether the plan is wrong if nothing uses the value that an operation makes. Passes may make unused
// values.
func (op Op) wastes(held Held) bool {
	switch op.Kind {
	case Recv, Store, Fetch, Gather:
		return true
	}
	return op.Kind == Recompute && held == Saved
}
