package engine

import (
	"fmt"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

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
	shardSlot                   // index of the rank among those that share the state
	ringSlot                    // index of the rank in its ring
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
		u, dtype, rows := o.units[x.number], o.policy.Reduce, o.shards
		if x.kind == freshSlot {
			dtype, rows = o.policy.Compute, 1
		}
		switch {
		case x.kind == sumSlot && o.sumsDiffer():
			return o.apart(), one(shapes.Make(dtype, rows, u.size))
		case x.kind == freshSlot && u.Shard != "" || x.kind == reducedSlot && o.shards > 1:
			return o.unitPlacement(u, true), one(shapes.Make(dtype, u.size))
		}
		return o.unitPlacement(u, false), one(shapes.Make(dtype, rows, u.size))
	case targetSlot:
		return xla.Shard(0, o.Mesh[0].Name), one(sizes.targets)
	case valueSlot:
		b := x.value.Block
		switch x.value.Held {
		case step.Input:
			if b == 0 {
				return xla.Shard(0, o.Mesh[0].Name), one(sizes.blocks[0].x)
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
			return o.unitPlacement(u, false), one(shapes.Make(o.policy.Compute, o.shards, u.size))
		}
		panic(fmt.Errorf("engine: unexpected value %v", x.value))
	}
	return xla.Replicated(), one(shapes.Shape{}) // scalars from the host, or a program's own vectors
}
