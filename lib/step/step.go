// Package step has training steps as data: what each rank does, in which order. A technique is a function that writes
// such lists or changes them; a plan can be checked, simulated, drawn, written and read, and asked what it holds and
// sends, before any device is touched. An engine carries it out.
//
// The operations and their names are those of PyTorch's pipelining (torch.distributed.pipelining.schedules): passes of
// blocks for micro-batches, as in 2F0, what is sent between ranks, as in 2SEND_F0, and parameters that are gathered,
// freed and whose gradients are reduced, as in 2UNSHARD, 2RESHARD and 2REDUCE_GRAD.
package step

import (
	"cmp"
	"slices"
)

// Kind is what an operation does.
type Kind byte

const (
	Forward    Kind = 'F' // a block's forward pass for a micro-batch
	Backward   Kind = 'B' // the gradients of its input and of its weights
	InputGrad  Kind = 'I' // the gradient of its input alone, which the block before waits for
	WeightGrad Kind = 'W' // the gradients of its weights alone, which nobody waits for; after InputGrad
	Recompute  Kind = 'R' // a forward pass again, for what was not kept for the backward pass
	Update     Kind = 'U' // the optimizer, with the gradients since the update before
	HostUpdate Kind = 'H' // the same by the host, of gradients and states in its memory, beside the passes

	Send   Kind = 's' // to Peer
	Recv   Kind = 'r' // from Peer
	Gather Kind = 'g' // shards along an axis, to the whole
	Free   Kind = 'f' // what was gathered
	Reduce Kind = 'x' // a sum along an axis; of what is sharded along it each rank gets its shard
	Store  Kind = 'h' // to the host's memory
	Fetch  Kind = 'd' // back to the device
	Wait   Kind = 'w' // until the operation Of with the same numbers has ended
)

// What says what an operation moves.
type What byte

const (
	Activation What = 'F' // the output of a block for a micro-batch
	Gradient   What = 'B' // that of an activation, between ranks; else the sums of a unit's gradients
	Parameters What = 'P' // of a unit
	State      What = 'S' // the optimizer's, of a unit
)

// Op is one operation of a rank. What does not apply is 0, but Unit, where −1 stands for all units of the rank.
//
// Passes are in the rank's own order, one after another. All others are under way beside them, those of one kind of
// transfer (of one axis, to one peer, to the host, to the device) one after another; a pass waits for what it uses.
type Op struct {
	Kind  Kind
	What  What // what Send to Fetch move
	Of    Kind // what Wait waits for
	Block int  // of passes, and of what belongs to one: from 0
	Micro int  // the micro-batch, from 0; of an update the last whose gradients are in it
	Unit  int  // of parameters, gradients and states
	Axis  string
	Peer  int // the other rank of Send and Recv
}

// Plan is what the ranks do in one step. It is plain data: change it, or write one by hand, and have [Plan.Check] say
// whether it can be.
type Plan struct {
	Name   string
	Blocks []Block // what is computed as one, in the order of the model; of a pipeline's schedule the stages
	Micro  int     // micro-batches that a rank's rows of a batch are divided into
	Every  int     // micro-batches that go into one update; with Flush all of them
	// Weights says which version of the weights the passes of a micro-batch use.
	Weights Weights
	Units   []Unit
	Axes    []Axis
	// Ranks has each rank's operations. Ranks may share a list. A block may be on several ranks (each has its weights
	// then), but all passes of a block for a micro-batch are on one.
	Ranks [][]Op
}

// Block is a piece of the model that is computed as one.
type Block struct {
	Name  string
	Units []int // whose parameters it uses
}

// Unit is parameters whose values are gathered, and whose gradients are reduced, together: in ZeRO those of a block, in
// DistributedDataParallel a bucket.
type Unit struct {
	Name string
	// Reduce lists the axes that gradients are summed along, in the order in which that is done.
	Reduce []string
	// Shard is the one of them along which each rank has a shard of the optimizer's states, and, as the operations say,
	// of gradients and parameters; "" is none.
	Shard string
}

// Axis is ranks, or devices of a rank, that do something together.
type Axis struct {
	Name string
	// Groups are the ranks that do it together. Without groups the axis is of each rank's own devices.
	Groups [][]int
	Size   int // ranks of a group, or devices
}

// Weights says which version of the weights the passes of a micro-batch use. Version v is what v updates have made. All
// passes use the same one, whatever updates come between.
type Weights string

const (
	// Flush updates when all micro-batches have passed: all use version 0, as in synchronous training.
	Flush Weights = "flush"
	// Stash has each block use the newest version that its rank has when the forward pass begins, and keep it for the
	// backward pass (PipeDream's weight stashing, Narayanan et al. 2019, §3.3).
	Stash Weights = "stash"
	// Vertical has all blocks use the version that the first block used (PipeDream's vertical sync, §3.3).
	Vertical Weights = "vertical"
	// Double has each batch of Every micro-batches use the version before the newest, so that there are never more than
	// two (PipeDream-2BW, Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", §3.1).
	Double Weights = "double"
)

var allWeights = []Weights{Flush, Stash, Vertical, Double}

// Pass says whether an operation is one of the passes or an update: what the rank's devices compute.
func (k Kind) Pass() bool {
	switch k {
	case Forward, Backward, InputGrad, WeightGrad, Recompute, Update:
		return true
	}
	return false
}

// Axis returns the axis of a name, and whether there is one.
func (p *Plan) Axis(name string) (Axis, bool) {
	if i := slices.IndexFunc(p.Axes, func(a Axis) bool { return a.Name == name }); i >= 0 {
		return p.Axes[i], true
	}
	return Axis{}, false
}

// Group returns the ranks that a rank is with along an axis, in their order; itself alone where the axis is of its own
// devices.
func (a Axis) Group(rank int) []int {
	for _, g := range a.Groups {
		if slices.Contains(g, rank) {
			return g
		}
	}
	return []int{rank}
}

// On returns the blocks that a rank has, in ascending order.
func (p *Plan) On(rank int) (blocks []int) {
	for _, op := range p.Ranks[rank] {
		switch op.Kind {
		case Forward, Backward, InputGrad, WeightGrad:
			blocks = append(blocks, op.Block)
		}
	}
	slices.SortFunc(blocks, cmp.Compare[int])
	return slices.Compact(blocks)
}

// UnitsOn returns the units of a rank's blocks, in ascending order.
func (p *Plan) UnitsOn(rank int) (units []int) {
	for _, b := range p.On(rank) {
		units = append(units, p.Blocks[b].Units...)
	}
	slices.Sort(units)
	return slices.Compact(units)
}
