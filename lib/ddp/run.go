package ddp

import (
	"cmp"
	"context"
	"fmt"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BetweenRanks names the traffic between ranks in the trainer's Traffic.
const BetweenRanks = "replica"

// Plan returns what each rank does in a training step; in local SGD, in the step that averages. It needs no devices.
func (o Options) Plan(r train.Recipe, ranks int) (*step.Plan, error) {
	s, err := o.spec(r, ranks)
	if err != nil {
		return nil, err
	}
	return s.Plans[len(s.Plans)-1], nil
}

// New starts training on the backend's first devices, with a rank for each. The gradients of a chain of blocks (such as
// gpt.Config: see package chain) are reduced while those of other blocks are computed; any other model is one block. It
// returns an error if the backend has fewer devices. The context is for starting; each call of the trainer has its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int, o Options) (train.Trainer, error) {
	s, err := o.spec(r, devices)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// Join makes this process one rank of a group, on one of the backend's devices. It is a collective call: all ranks
// start with rank 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe,
	o Options) (train.Trainer, error) {
	s, err := o.spec(r, g.Size())
	if err != nil {
		return nil, err
	}
	return engine.Join(ctx, g, backend, device, s)
}

// spec returns the engine's description of a run.
func (o Options) spec(r train.Recipe, ranks int) (s engine.Spec, err error) {
	if err := o.Validate(); err != nil {
		return s, err
	}
	if ranks < 1 {
		return s, fmt.Errorf("ddp: %d devices: give at least 1", ranks)
	}
	if s, err = engine.Alone(r, max(o.Accumulate, 1)); err != nil {
		return s, err
	}
	p := s.Plans[0]
	p.Name = "ddp"
	if o.Recompute {
		p = recompute.Blocks(p)
	}
	o.Sync = cmp.Or(o.Sync, Bucketed)
	s.Options = engine.Options{Hook: o.Hook, Sum: o.SumLoss, Timeout: o.Timeout, Trace: o.Trace}
	sums := s.Recipe.Model.Params().As(r.Policy().Reduce)
	plans, members := o.Write(p.Replicate(ranks, BetweenRanks), s.Members, sums, BetweenRanks)
	s.Members = members
	if s, err = s.Checked(plans...); err != nil && o.Every > 1 {
		err = fmt.Errorf("ddp: Options.Every is %d: %w", o.Every, err)
	}
	return s, err
}
