package engine

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// io is a segment's inputs and outputs, in order.
type io struct {
	in, out []slot
	donated []slot // inputs whose memory it reuses
	touched []int  // parameters whose gradients it accumulates in sums from outside
	begins  []int  // those of them whose sums are empty before
}

func (s *io) takes(x slot) {
	if !slices.Contains(s.in, x) {
		s.in = append(s.in, x)
	}
}

func (s *io) gives(x slot) {
	if !slices.Contains(s.out, x) {
		s.out = append(s.out, x)
	}
}

func (s *io) changes(x slot) {
	s.takes(x)
	s.gives(x)
	if !slices.Contains(s.donated, x) {
		s.donated = append(s.donated, x)
	}
}

// listIO lists what the operations of a segment take and give. Values are those of the plan's flow.
func (o *own) listIO(p *step.Plan, f *step.Flow, from, to int) *io {
	s := &io{}
	list := p.Ranks[o.rank]
	made := map[slot]bool{}     // in the segment
	none := func(x slot) bool { // the loss does not depend on the unit
		return (x.kind == sumSlot || x.kind == reducedSlot) && o.units[x.number].size == 0
	}
	take := func(x slot) {
		if !made[x] {
			s.takes(x)
		}
	}
	ends := map[slot]int{} // in the segment: the last position
	for i := from; i < to; i++ {
		for _, v := range f.Ends[i] {
			if v.Held != step.States && v.Held != step.Fresh { // which takeState handles
				ends[o.slotOf(v)] = i
			}
		}
	}
	ended := func(x slot, i int) bool { at, ok := ends[x]; return ok && at >= i }
	last := len(p.Blocks) - 1
	for i := from; i < to; i++ {
		op := list[i]
		switch op.Kind {
		case step.Forward, step.Recompute, step.Backward, step.InputGrad, step.WeightGrad:
			o.takeWeights(op.Block, take)
			if o.ring > 1 {
				s.takes(slot{kind: ringSlot})
			}
			if o.model.Noisy {
				s.takes(slot{kind: stepSlot})
				s.takes(slot{kind: rowSlot, number: op.Micro})
			}
			if op.Block == last {
				s.takes(slot{kind: targetSlot, number: op.Micro})
				if op.Kind == step.Forward {
					s.gives(slot{kind: lossSlot, number: op.Micro})
				} else if op.Kind != step.Recompute {
					for _, c := range o.scalingCells() {
						take(slot{kind: cellSlot, number: c})
					}
				}
			}
		case step.Gather:
			if fresh := (slot{kind: freshSlot, number: op.Unit}); op.What == step.Parameters && f.Resident[op.Unit] {
				take(fresh)
				s.out = slices.DeleteFunc(s.out, func(x slot) bool { return x == fresh })
			} else if op.What == step.Parameters {
				take(slot{kind: cellSlot, number: o.cellOf(op.Unit)})
			}
		case step.Update, step.HostUpdate:
			o.takeState(s, op, o.isLast(p, op))
			for _, u := range o.order {
				if (op.Unit < 0 || op.Unit == u) && (f.Resident[u] || op.Kind == step.HostUpdate) {
					fresh := slot{kind: freshSlot, number: u}
					made[fresh] = true
					s.gives(fresh)
				}
			}
		}
		for _, v := range f.Uses[i] {
			x := o.slotOf(v)
			switch {
			case v.Held == step.States || v.Held == step.Fresh || none(x):
			case x.kind == reducedSlot && op.Kind == step.Reduce && !made[x]:
				s.changes(x)
			case x.kind != sumSlot || op.Kind == step.Reduce || updates(op.Kind):
				take(x)
			}
		}
		for _, v := range f.Makes[i] {
			x := o.slotOf(v)
			if v.Held == step.States || v.Held == step.Fresh || none(x) || slices.Contains(f.Unmade[i], v) {
				continue // nothing needs it
			}
			if x.kind == valueSlot && v.Held == step.Input && op.Kind == step.Forward && op.Block == 0 && v.Block == 0 {
				s.takes(x) // the batch
				continue
			}
			if made[x] = true; x.kind != sumSlot && !ended(x, i) {
				s.gives(x)
			}
		}
		if op.Kind == step.Backward || op.Kind == step.WeightGrad {
			o.touch(s, op.Block, func(x slot) bool { return made[x] && ended(x, i) })
		}
	}
	s.out = slices.DeleteFunc(s.out, func(x slot) bool { // used up
		_, gone := ends[x]
		return gone && (x.kind == sumSlot || x.kind == reducedSlot)
	})
	for _, x := range s.out { // a unit's full parameters replace the old ones
		if x.kind == cellSlot && slices.Contains(s.in, x) {
			s.changes(x)
		}
	}
	s.donated = slices.DeleteFunc(s.donated, func(x slot) bool { return !slices.Contains(s.out, x) })
	return s
}

// touch lists the sums in which a block's gradients are accumulated, except those that never leave the segment.
func (o *own) touch(s *io, block int, stays func(slot) bool) {
	for _, at := range o.blockParams[block] {
		x := slot{kind: sumSlot, number: o.unitOf[at].number}
		if o.idle[at] || stays(x) {
			continue
		}
		if s.changes(x); !slices.Contains(s.touched, at) {
			s.touched = append(s.touched, at)
			s.takes(slot{kind: touchedSlot})
		}
	}
}

// takeWeights takes the parameters of a block.
func (o *own) takeWeights(block int, take func(slot)) {
	for _, at := range o.blockParams[block] {
		if o.unitOf[at].Shard == "" || !o.flat {
			take(slot{kind: cellSlot, number: o.weights[at]})
		}
	}
}

// takeState lists the state that an update takes and gives. Only the last update changes what belongs to no unit.
func (o *own) takeState(s *io, op step.Op, last bool) {
	members := o.updated(op.Unit)
	for _, at := range members {
		if x := (slot{kind: cellSlot, number: o.weights[at]}); o.cells[x.number].full && !o.hosts {
			// the update reads its row
			s.takes(x)
		} else if !o.hosts {
			s.changes(x)
		}
		if x := (slot{kind: cellSlot, number: o.entries[at].cell}); x.number != o.weights[at] {
			s.changes(x)
		}
	}
	for _, cell := range o.otherCells(members) {
		if x := (slot{kind: cellSlot, number: cell}); cell < o.firstShared() || last {
			s.changes(x)
		} else {
			s.takes(x)
		}
	}
	if s.takes(slot{kind: factorSlot}); o.perRank < o.shards {
		s.takes(slot{kind: shardSlot})
	}
	if last {
		s.gives(slot{kind: metricSlot})
	}
}
