package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
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
			for i := range o.inside {
				s.takes(slot{kind: rankSlot, number: i})
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
		x := slot{kind: cellSlot, number: o.weights[at]}
		switch {
		case o.hosts:
		case o.cells[x.number].full && o.unitOf[at].n > 1: // the update reads its row
			s.takes(x)
		default:
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
	s.takes(slot{kind: factorSlot})
	for _, at := range members {
		if u := o.unitOf[at]; u.perRank < u.n {
			s.takes(o.shardSlot(u))
		}
	}
	if last {
		s.gives(slot{kind: metricSlot})
	}
}

// slotKind is the kind of a slot.
type slotKind byte

const (
	cellSlot    slotKind = iota // an array that the devices hold between steps: number
	valueSlot                   // a value of the plan, of one or more arrays
	freshSlot                   // a shard of a unit's new parameters, from an update to the gather: number
	sumSlot                     // a unit's accumulated gradients, a matrix: number
	reducedSlot                 // reduced gradients, or shards of them: number
	touchedSlot                 // the columns of parameters in these matrices
	targetSlot                  // the targets of a micro-batch: number
	rowSlot                     // index of its first example in the batch of all ranks: number
	stepSlot                    // number of the step
	lossSlot                    // loss of a micro-batch: number
	factorSlot                  // what an update multiplies gradients by
	shardSlot                   // index of the rank along an axis of shards: its number in the plan
	rankSlot                    // index of the rank along an axis that passes use: number
	metricSlot                  // the vector of metrics of an update
)

// slot is an input or output of a segment.
type slot struct {
	kind   slotKind
	value  step.Value
	number int
}

// valueOf returns the slot of a value of a block for a micro-batch.
func valueOf(h step.Held, block, micro int) slot {
	return slot{kind: valueSlot, value: step.Value{Held: h, Block: block, Micro: micro}}
}

// shardSlot returns the slot of the rank's index among those that share a unit's state.
func (o *own) shardSlot(u *unit) slot {
	return slot{kind: shardSlot, number: slices.IndexFunc(o.Plans[0].Axes, func(a step.Axis) bool {
		return a.Name == u.axis
	})}
}

// slotOf returns the slot of a value of the plan.
func (o *own) slotOf(v step.Value) slot {
	switch v.Held {
	case step.Sum:
		return slot{kind: sumSlot, number: v.Unit}
	case step.Reduced:
		return slot{kind: reducedSlot, number: v.Unit}
	case step.Full:
		if at := o.cellOf(v.Unit); o.cells[at].full {
			return slot{kind: cellSlot, number: at}
		}
	}
	return slot{kind: valueSlot, value: v}
}

// ofParameters reports whether a slot has a parameter that is an array of its own.
func (o *own) ofParameters(x slot) bool {
	return x.kind == cellSlot && !o.flat && o.cells[x.number].kind == memest.Parameters
}

// kindOf returns the kind of memory of a slot, except parameters to communicate.
func (o *own) kindOf(x slot) memest.Kind {
	switch x.kind {
	case cellSlot:
		return o.cells[x.number].kind
	case sumSlot, reducedSlot:
		return memest.Gradients
	case freshSlot:
		return memest.Parameters
	case metricSlot:
		return batchKind
	}
	return memest.Activations
}

// lies returns the placement of a slot's arrays, and their shapes on each device.
func (o *own) lies(x slot, sizes *sizes) (on xla.Placement, all []shapes.Shape) {
	one := func(s shapes.Shape) []shapes.Shape { return []shapes.Shape{s} }
	switch x.kind {
	case cellSlot:
		return o.cells[x.number].on, one(o.cells[x.number].shape)
	case sumSlot, reducedSlot, freshSlot:
		u, dtype, rows := o.units[x.number], o.policy.Reduce, o.units[x.number].n
		if x.kind == freshSlot {
			dtype, rows = o.policy.Compute, 1
		}
		switch {
		case x.kind == sumSlot && o.sumsDiffer():
			return o.apart(), one(shapes.Make(dtype, rows, u.size))
		case x.kind == freshSlot && u.Shard != "" || x.kind == reducedSlot && u.n > 1:
			return o.unitPlacement(u, true), one(shapes.Make(dtype, u.size))
		}
		return o.unitPlacement(u, false), one(shapes.Make(dtype, rows, u.size))
	case targetSlot:
		return xla.Shard(0, o.examples()...), one(sizes.targets)
	case valueSlot:
		b := x.value.Block
		switch x.value.Held {
		case step.Input:
			if b == 0 {
				return xla.Shard(0, o.examples()...), one(sizes.blocks[0].x)
			}
			return o.activations(), one(sizes.blocks[b].x)
		case step.OutGrad:
			return o.activations(), one(sizes.blocks[b+1].x)
		case step.Part:
			x := sizes.blocks[b].x
			n := o.size(o.Shards.Axis)
			return o.apart(), one(shapes.Make(precision.BitsType(x.DType), (x.Size()+n-1)/n))
		case step.Saved:
			return o.apart(), sizes.blocks[b].saved
		case step.ForWeightGrad:
			return o.apart(), sizes.blocks[b].forWeights
		case step.Full:
			u := o.units[x.value.Unit]
			return o.unitPlacement(u, false), one(shapes.Make(o.policy.Compute, u.n, u.size))
		}
		panic(fmt.Errorf("engine: unexpected value %v", x.value))
	}
	return xla.Replicated(), one(shapes.Shape{}) // scalars from the host, or a program's own vectors
}
