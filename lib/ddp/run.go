package ddp

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BetweenRanks is the name, in the trainer's Traffic, of what goes between ranks.
const BetweenRanks = "replica"

// Plan is what each of so many ranks does in a step of a recipe, and when; in local SGD in a step that ends with an average.
// It needs no devices.
func (o Options) Plan(r train.Recipe, ranks int) (*step.Plan, error) {
	s, err := o.spec(r, ranks)
	if err != nil {
		return nil, err
	}
	return s.Plans[len(s.Plans)-1], nil
}

// New starts a run of a recipe on so many of the backend's first devices, one for each rank. The model is best a chain of
// blocks (chain.Chained, as gpt.Config is), whose gradients are reduced while those of other blocks are computed; any other
// is one block. Too few devices are an error. The context is for starting; each call of the trainer has its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int, o Options) (train.Trainer, error) {
	s, err := o.spec(r, devices)
	if err != nil {
		return nil, err
	}
	if backend == nil {
		return nil, errNoBackend
	}
	run, err := engine.Start(ctx, backend, s)
	if err != nil {
		return nil, err
	}
	return run, nil
}

// Join makes this process's rank of a group, which runs on one of the backend's devices. It is a collective call: all begin
// with rank 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe, o Options) (train.Trainer, error) {
	s, err := o.spec(r, g.Size())
	if err != nil {
		return nil, err
	}
	if backend == nil {
		return nil, errNoBackend
	}
	return engine.Join(ctx, g, backend, device, s)
}

var errNoBackend = errors.New("ddp: the backend is nil: open one with xla.Open")

// spec is a run of a recipe on ranks, as the engine has it.
func (o Options) spec(r train.Recipe, ranks int) (s engine.Spec, err error) {
	if err := errors.Join(o.Validate(), r.Validate()); err != nil {
		return s, err
	}
	switch {
	case ranks < 1:
		return s, fmt.Errorf("ddp: %d devices: give at least 1", ranks)
	case r.Replicas != nil:
		return s, errors.New("ddp: Recipe.Replicas is set, which is for one program on several devices: leave it nil")
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return s, err
	}
	r.Model = model // whose parameters may be in another order
	p, members := engine.Serial(model, max(o.Accumulate, 1))
	p.Name = "ddp"
	if o.Recompute {
		p = recompute.Blocks(p)
	}
	o.Sync = cmp.Or(o.Sync, Bucketed)
	s = engine.Spec{Recipe: r, Options: engine.Options{Hook: o.Hook, Sum: o.SumLoss, Timeout: o.Timeout, Trace: o.Trace}}
	s.Plans, s.Members = o.Write(p.Copies(ranks, BetweenRanks), members, model.Params().As(r.Policy().Reduce), BetweenRanks)
	for _, p := range s.Plans {
		if err := p.Check(); err != nil {
			return s, err
		}
	}
	if err = engine.Check(s); err != nil && o.Every > 1 {
		err = fmt.Errorf("ddp: Options.Every is %d: %w", o.Every, err)
	}
	return s, err
}
