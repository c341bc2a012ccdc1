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

// Hook replaces the all-reduce of a unit's gradients: PyTorch's communication hooks. Each rank has its own hook, which
// may store data from step to step.
type Hook interface {
	// Reduce replaces this rank's gradients by the sum of all ranks' gradients or an approximation; all ranks must get
	// the same bits. All ranks call it with the same units in the same order, one at a time. It may use the group as it
	// likes.
	Reduce(ctx context.Context, g group.Group, grads Gradients) error
}

// Server is a hook that also updates: its Reduce replaces the gradients by new parameters. It has the optimizer states,
// and ranks have none; ranks need not hold the same bits. The loss of a step is that of a rank's own shard of the
// batch, so ranks do not wait for each other.
type Server interface {
	Hook
	// Begin takes the full state on the host, in the order of train.Recipe.State: at the start, and when a checkpoint
	// is loaded. It is a collective call of a rank on a device. The server sends through the group of the first call,
	// which counts its bytes.
	Begin(ctx context.Context, g group.Group, device int, state []*tensors.Tensor) error
	// Parts returns what the rank writes into the checkpoint of a step.
	Parts(steps int) ([]checkpoint.Part, error)
	// Close ends the communication. All ranks call it together, except one that has failed, which gives its error. Only
	// the first call has an effect.
	Close(failed error) error
}

// pulled is the optimizer of parameters that a server updates: it takes them from the place of the gradients.
type pulled struct{}

// Validate implements [optim.Optimizer].
func (pulled) Validate() error { return nil }

// States implements [optim.Optimizer].
func (pulled) States(params.Spec, optim.Part) []optim.State { return nil }

// Update implements [optim.Optimizer].
func (pulled) Update(u optim.Update) (*graph.Node, []*graph.Node) {
	return graph.ConvertDType(u.Grad, u.Param.DType()), nil
}

// Gradients are a rank's gradients of a unit, such as a bucket, in host memory.
type Gradients struct {
	Params  params.Tree // the parameters, in the order of Data and the type of its elements
	Offsets []int       // where each one's gradient begins, in elements
	Unit    int         // of the plan, from 0
	Type    group.Type
	Data    group.Buffer
}

// Float32 returns the gradients as a slice, without a copy, and an error if they have another type.
func (g Gradients) Float32() ([]float32, error) {
	if g.Type != group.Float32 {
		return nil, fmt.Errorf("ddp: gradients are summed in %v, but the hook takes float32 only: "+
			"set Recipe.Precision.Reduce", g.Type)
	}
	return unsafe.Slice((*float32)(g.Data.Data), g.Data.Len), nil
}

// counted is a hook's view of a group. It counts the bytes of each call, inputs or outputs, whichever are more;
// receives do not count.
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
