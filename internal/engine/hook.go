package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// Hook communicates the gradients of a unit in place of an all-reduce: what PyTorch calls a communication hook. A rank
// has one of its own, which may keep what it likes from step to step.
type Hook interface {
	// Reduce replaces the rank's gradients by the sum of all ranks', or what is near to it; all ranks must get the same
	// bits. All ranks call it with the same units in the same order, one at a time, and it makes what calls on the
	// group it likes.
	Reduce(ctx context.Context, g group.Group, grads Gradients) error
}

// Server is a hook that makes the updates in the ranks' place: its Reduce leaves, instead of the gradients, the
// parameters that it has made of them. It has the optimizer's states, of which the ranks then have none, and its ranks
// need not have the same bits. The loss of a step is that of a rank's own rows: nobody waits for it.
type Server interface {
	Hook
	// Begin takes the whole state on the host, as train.Recipe.State lists it: at first, and when a checkpoint is
	// loaded. It is a collective call of a rank on a device. What the server sends it gives to the first call's group,
	// which counts it.
	Begin(ctx context.Context, g group.Group, device int, state []*tensors.Tensor) error
	// Parts are what the rank writes into the checkpoint of a step.
	Parts(steps int) ([]checkpoint.Part, error)
	// Close ends what goes on between the ranks, which all call it, but for one that was lost. Only the first call does
	// anything.
	Close(lost error) error
}

// given is the rule of parameters that a server makes: they are there in the place of the gradients.
type given struct{}

// Validate implements [optim.Optimizer].
func (given) Validate() error { return nil }

// States implements [optim.Optimizer].
func (given) States(params.Spec, optim.Part) []optim.State { return nil }

// Update implements [optim.Optimizer].
func (given) Update(u optim.Update) (*graph.Node, []*graph.Node) {
	return graph.ConvertDType(u.Grad, u.Param.DType()), nil
}

// Gradients are a rank's gradients of a unit, such as a bucket, in memory that the host reaches.
type Gradients struct {
	Params  params.Tree // whose gradients they are, in the type that they are summed in, in the order in which they lie
	Offsets []int       // where each begins, in elements
	Unit    int         // of the plan, counted from 0
	Type    group.Type
	Data    group.Buffer
}

// Float32 returns the gradients as a slice: no copy. It is an error if they have another type.
func (g Gradients) Float32() ([]float32, error) {
	if g.Type != group.Float32 {
		return nil, fmt.Errorf("ddp: gradients are summed in %v, and the hook takes float32 alone: "+
			"set Recipe.Precision.Reduce", g.Type)
	}
	return unsafe.Slice((*float32)(g.Data.Data), g.Data.Len), nil
}

// counted is a hook's view of a group, which counts the data of its calls, but for what is received: of what goes in or
// comes out, whichever is more.
type counted struct {
	group.Group
	bytes *atomic.Int64
}

func (c counted) count(call group.Call) {
	if call.Kind != group.KindRecv {
		c.bytes.Add(int64(max(call.In.Len, call.Out.Len) * call.Type.Size()))
	}
}

// Do implements [group.Group].
func (c counted) Do(ctx context.Context, call group.Call) error {
	c.count(call)
	return c.Group.Do(ctx, call)
}

// Start implements [group.Group].
func (c counted) Start(ctx context.Context, call group.Call) *group.Pending {
	c.count(call)
	return c.Group.Start(ctx, call)
}
