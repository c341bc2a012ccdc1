// Package step describes a training step as data: what each rank does, and in which order. Techniques are functions
// that write or rewrite such a [Plan]. A plan can be checked, simulated, drawn, written and read, and its memory and
// traffic predicted, without any device; the trainers of lib/ddp, lib/zero, lib/pipeline and lib/parallel run it.
//
// Operations have the names of PyTorch's pipelining (torch.distributed.pipelining.schedules): 2F0 is the forward pass
// of block 2 for micro-batch 0, 2SEND_F0 sends its output to another rank, 2UNSHARD gathers the parameters of unit 2,
// 2RESHARD frees them, and 2REDUCE_GRAD reduces its gradients.
package step

import (
	"cmp"
	"slices"
)

// Kind is what an operation does.
type Kind byte

const (
	Forward    Kind = 'F' // a block's forward pass for a micro-batch
	Backward   Kind = 'B' // gradients of its input and its weights
	InputGrad  Kind = 'I' // gradient of its input alone, which the previous block waits for
	WeightGrad Kind = 'W' // gradients of its weights alone, which nothing waits for; after InputGrad
	Recompute  Kind = 'R' // a second forward pass, for activations that were not saved
	Update     Kind = 'U' // the optimizer's step, with the gradients since the last one
	HostUpdate Kind = 'H' // the same on the host, with gradients and states in host memory, beside the passes

	Send   Kind = 's' // to Peer
	Recv   Kind = 'r' // from Peer
	Gather Kind = 'g' // all-gather along an axis
	Free   Kind = 'f' // free what was gathered
	Reduce Kind = 'x' // all-reduce along an axis, or reduce-scatter if the unit is sharded along it
	Store  Kind = 'h' // copy to host memory
	Fetch  Kind = 'd' // copy back to the device
	Wait   Kind = 'w' // wait until the operation of kind Of with the same numbers is done
)

// What is the data that an operation moves.
type What byte

const (
	Activation What = 'F' // output of a block for a micro-batch
	Gradient   What = 'B' // output gradient of a block for Send and Recv; else the accumulated gradients of a unit
	Parameters What = 'P' // of a unit
	State      What = 'S' // optimizer states of a unit
)

// Op is one operation of a rank. Fields that do not apply are 0. Unit is -1 for all units of the rank.
//
// Passes run one after another, in the order of the list. Other operations run beside them, those of one stream (an
// axis, a peer, to the host, to the device) one after another. A pass waits for the operations whose results it uses.
//
// During a pass ranks may exchange data, such as tokens and the results of experts, and a rank has nothing to do while
// it waits for them. Hence a backward pass may be paired with the forward passes before it: see [Pair].
type Op struct {
	Kind  Kind
	What  What // of Send to Fetch
	Of    Kind // of Wait
	Block int  // of passes and activations, from 0
	Micro int  // micro-batch, from 0; of an update, the last one whose gradients it uses
	Unit  int  // of updates, parameters, gradients and states
	Axis  string
	Peer  int // the other rank of Send and Recv
	// Paired says that a Recompute, Backward, InputGrad or WeightGrad belongs to a pair.
	Paired bool
}

// Plan is what the ranks do in one training step. It is plain data: write or change one, and call [Plan.Check].
type Plan struct {
	Name   string
	Blocks []Block // in the order of the model; the stages of a pipeline's schedule
	Micro  int     // micro-batches per step
	Every  int     // micro-batches per update; with Flush all
	// Weights says which version of the weights each micro-batch uses.
	Weights Weights
	Units   []Unit
	Axes    []Axis
	// Ranks has the operations of each rank. Ranks may share a list. All passes of a block for a micro-batch are on one
	// rank. A block may be on several ranks, each with its own copy of the weights.
	Ranks [][]Op
}

// Block is a piece of the model whose passes are single operations.
type Block struct {
	Name  string
	Units []int // whose parameters it uses
}

// Unit is a set of parameters that are gathered, and whose gradients are reduced, together: a block's in ZeRO, a bucket
// in DistributedDataParallel.
type Unit struct {
	Name string
	// Reduce lists the axes along which gradients are reduced, in this order.
	Reduce []string
	// Shard is the axis, one of Reduce, along which optimizer states are sharded, and gradients and parameters where
	// the operations say so; "" means that the unit is not sharded.
	Shard string
	// Apart is the axis whose ranks have different parameters of the unit, such as experts, so that their gradients are
	// complete without a reduction; "" is none.
	Apart string
}

// Axis is a partition of the ranks into groups that communicate, or stands for the devices of each rank.
type Axis struct {
	Name string
	// Groups are the ranks of each group. Without groups the axis is that of each rank's own devices.
	Groups [][]int
	Size   int // ranks in a group, or devices of a rank
}

// Weights says which version of the weights a micro-batch uses. Version v is the result of v updates. All passes of a
// block for a micro-batch use one version, even if updates come between them.
type Weights string

const (
	// Flush updates after all micro-batches, which all use version 0: synchronous training.
	Flush Weights = "flush"
	// Stash uses the newest version that a block's rank has when the forward pass begins, and saves it for the backward
	// pass (PipeDream's weight stashing, Narayanan et al. 2019, §3.3).
	Stash Weights = "stash"
	// Vertical uses in all blocks the version that the first block used (PipeDream's vertical sync, §3.3).
	Vertical Weights = "vertical"
	// Double uses for each batch of Every micro-batches the version before the newest, so that two versions are enough
	// (PipeDream-2BW, Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", §3.1).
	Double Weights = "double"
)

var allWeights = []Weights{Flush, Stash, Vertical, Double}

// Pass reports whether the operation is a pass or an update on the rank's devices.
func (k Kind) Pass() bool {
	switch k {
	case Forward, Backward, InputGrad, WeightGrad, Recompute, Update:
		return true
	}
	return false
}

// Axis returns the axis with a name, and whether it exists.
func (p *Plan) Axis(name string) (Axis, bool) {
	if i := slices.IndexFunc(p.Axes, func(a Axis) bool { return a.Name == name }); i >= 0 {
		return p.Axes[i], true
	}
	return Axis{}, false
}

// Group returns the ranks of a rank's group in order; only the rank itself if the axis is of its own devices.
func (a Axis) Group(rank int) []int {
	for _, g := range a.Groups {
		if slices.Contains(g, rank) {
			return g
		}
	}
	return []int{rank}
}

// On returns the blocks of a rank, in ascending order.
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
