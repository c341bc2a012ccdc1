package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Run is all ranks of a plan in this process, as goroutines. Its methods are for one goroutine.
type Run struct {
	programs *Programs
	ranks    []*Rank
	ctx      context.Context // ends with the first error
	fail     context.CancelCauseFunc
}

// patience is how long ranks of a process wait for each other, for the compiler, say. One that fails tells the others at once.
const patience = time.Hour

// Start starts a run on the backend's first devices. The context is for starting: each call has its own.
func Start(ctx context.Context, backend *xla.Backend, s Spec) (train.Trainer, error) {
	s.Timeout = cmp.Or(s.Timeout, patience)
	programs, err := New(backend, s)
	if err != nil {
		return nil, err
	}
	n, each := len(programs.ranks), programs.devices()
	if have := int(backend.NumDevices()); have < n*each {
		programs.Close()
		return nil, fmt.Errorf("the layout has %d devices, and the backend %d: open more with xla.Devices", n*each, have)
	}
	groups, err := group.New(n, group.Timeout(patience))
	if err != nil {
		return nil, err
	}
	r := &Run{programs: programs, ranks: make([]*Rank, n)}
	r.ctx, r.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	err = r.each(ctx, func(ctx context.Context, i int) (err error) {
		r.ranks[i], err = programs.Join(ctx, groups[i], i*each)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// each does something on all ranks at once. Where that leaves them as they were the first rank's error says most; else the first of all,
// of which others may be the consequence.
func (r *Run) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(r.ctx, func() { stop(context.Cause(r.ctx)) })()
	errs := make([]error, len(r.ranks))
	var all sync.WaitGroup
	for i := range r.ranks {
		all.Go(func() {
			if errs[i] = do(ctx, i); errs[i] != nil && (r.ranks[i] == nil || r.ranks[i].lost != nil) {
				r.fail(errs[i])
			}
		})
	}
	all.Wait()
	return cmp.Or(context.Cause(r.ctx), cmp.Or(errs...))
}

// Step implements [train.Trainer].
func (r *Run) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	all := make([]train.Metrics, len(r.ranks))
	err := r.each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = r.ranks[i].Step(ctx, inputs, targets)
		return err
	})
	return all[0], err
}

// Evaluate implements [train.Trainer].
func (r *Run) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	losses := make([]float64, len(r.ranks))
	err := r.each(ctx, func(ctx context.Context, i int) (err error) {
		losses[i], err = r.ranks[i].Evaluate(ctx, inputs, targets)
		return err
	})
	return losses[0], err
}

// Steps implements [train.Trainer].
func (r *Run) Steps() int { return r.ranks[0].Steps() }

// Params implements [train.Trainer].
func (r *Run) Params(ctx context.Context) (params.Named[*tensors.Tensor], error) {
	all := make([]params.Named[*tensors.Tensor], len(r.ranks))
	if err := r.each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = r.ranks[i].Params(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	whole := params.Named[*tensors.Tensor]{}
	for i := len(all) - 1; i >= 0; i-- {
		maps.Copy(whole, all[i])
	}
	return whole, nil
}

// Memory implements [train.Trainer]: of each kind what the device has that has most.
func (r *Run) Memory() map[memest.Kind]int64 {
	most := map[memest.Kind]int64{}
	for _, one := range r.ranks {
		for kind, n := range one.Memory() {
			most[kind] = max(most[kind], n)
		}
	}
	return most
}

// Traffic implements [train.Trainer]: by each name, of the rank that sent most.
func (r *Run) Traffic() (map[string]int64, error) {
	most := map[string]int64{}
	for _, one := range r.ranks {
		own, err := one.Traffic()
		if err != nil {
			return nil, err
		}
		for name, n := range own {
			most[name] = max(most[name], n)
		}
	}
	return most, nil
}

// Plan implements [train.Trainer].
func (r *Run) Plan() *step.Plan { return r.ranks[0].Plan() }

// Save implements [train.Trainer].
func (r *Run) Save(ctx context.Context, dir string, meta any, keep int) error {
	return r.each(ctx, func(ctx context.Context, i int) error { return r.ranks[i].Save(ctx, dir, meta, keep) })
}

// Load implements [train.Trainer].
func (r *Run) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	return r.each(ctx, func(ctx context.Context, i int) error { return r.ranks[i].Load(ctx, c) })
}

// Close implements [train.Trainer].
func (r *Run) Close() error {
	var errs []error
	for _, one := range r.ranks {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	r.programs.Close()
	r.fail(errors.New("the run is closed: start another"))
	return errors.Join(errs...)
}

// Join is [Programs.Join] with programs of the rank's own, which it frees with the rank.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, first int, s Spec) (train.Trainer, error) {
	programs, err := New(backend, s)
	if err != nil {
		return nil, err
	}
	one, err := programs.Join(ctx, g, first)
	if err != nil {
		programs.Close()
		return nil, err
	}
	return joined{one, programs}, nil
}

type joined struct {
	*Rank
	programs *Programs
}

// Close implements [train.Trainer].
func (j joined) Close() error {
	defer j.programs.Close()
	return j.Rank.Close()
}

var _, _ train.Trainer = (*Run)(nil), (*Rank)(nil)
