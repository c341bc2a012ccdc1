package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// Run is all ranks of a plan in this process, as goroutines. It is not safe for concurrent use.
type Run struct {
	programs *Programs
	ranks    []*Rank
	ctx      context.Context // ends with the first error
	fail     context.CancelCauseFunc
}

// patience is how long ranks of a process wait for each other, such as for the compiler. Failures are told at once.
const patience = time.Hour

// Start starts all ranks on the backend's first devices. The context is for starting: each call has its own.
func Start(ctx context.Context, backend *xla.Backend, s Spec) (train.Trainer, error) {
	s.Timeout = cmp.Or(s.Timeout, patience)
	programs, err := New(backend, s)
	if err != nil {
		return nil, err
	}
	n, each := len(programs.ranks), programs.devices()
	r := &Run{programs: programs, ranks: make([]*Rank, n)}
	r.ctx, r.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	groups, err := group.New(n, group.Timeout(patience))
	if have := int(backend.NumDevices()); have < n*each {
		err = fmt.Errorf("the layout needs %d devices, the backend has %d: open more with xla.Devices", n*each, have)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	err = r.each(ctx, func(ctx context.Context, i int) (err error) {
		r.ranks[i], err = programs.Join(ctx, groups[i], i*each)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// each runs do on all ranks at once. It returns the error that failed the run first, or else the first rank's.
func (r *Run) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(r.ctx, func() { stop(context.Cause(r.ctx)) })()
	errs := make([]error, len(r.ranks))
	var all sync.WaitGroup
	for i := range r.ranks {
		all.Go(func() {
			if errs[i] = do(ctx, i); errs[i] != nil && (r.ranks[i] == nil || r.ranks[i].failed != nil) {
				r.fail(errs[i])
			}
		})
	}
	all.Wait()
	return cmp.Or(context.Cause(r.ctx), cmp.Or(errs...))
}

// ask runs do on all ranks and returns each result.
func ask[T any](ctx context.Context, r *Run, do func(ctx context.Context, one *Rank) (T, error)) ([]T, error) {
	all := make([]T, len(r.ranks))
	return all, r.each(ctx, func(ctx context.Context, i int) (err error) {
		all[i], err = do(ctx, r.ranks[i])
		return err
	})
}

// Step implements [train.Trainer].
func (r *Run) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	all, err := ask(ctx, r, func(ctx context.Context, one *Rank) (train.Metrics, error) {
		return one.Step(ctx, inputs, targets)
	})
	return all[0], err
}

// Evaluate implements [train.Trainer].
func (r *Run) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	all, err := ask(ctx, r, func(ctx context.Context, one *Rank) (float64, error) {
		return one.Evaluate(ctx, inputs, targets)
	})
	return all[0], err
}

// Steps implements [train.Trainer].
func (r *Run) Steps() int { return r.ranks[0].Steps() }

// Params implements [train.Trainer].
func (r *Run) Params(ctx context.Context, names ...string) (params.Named[*tensors.Tensor], error) {
	all, err := ask(ctx, r, func(ctx context.Context, one *Rank) (params.Named[*tensors.Tensor], error) {
		return one.Params(ctx, names...)
	})
	if err != nil {
		return nil, err
	}
	full := params.Named[*tensors.Tensor]{}
	for _, own := range slices.Backward(all) {
		maps.Copy(full, own)
	}
	return full, nil
}

// Memory implements [train.Trainer]: the maximum over the devices, by kind.
func (r *Run) Memory() map[memest.Kind]int64 {
	all := map[memest.Kind]int64{}
	for _, one := range r.ranks {
		most(all, one.Memory())
	}
	return all
}

// Traffic implements [train.Trainer]: the maximum over the ranks, by axis.
func (r *Run) Traffic() (map[string]int64, error) {
	all := map[string]int64{}
	for _, one := range r.ranks {
		own, err := one.Traffic()
		if err != nil {
			return nil, err
		}
		most(all, own)
	}
	return all, nil
}

// most sets each number in all to the maximum of both.
func most[K comparable](all, more map[K]int64) {
	for kind, n := range more {
		all[kind] = max(all[kind], n)
	}
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
	r.fail(errors.New("the run is closed: start a new one"))
	return errors.Join(errs...)
}

// Join is [Programs.Join] with programs that are closed with the rank.
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
	one.alone = true
	return one, nil
}

var _, _ train.Trainer = (*Run)(nil), (*Rank)(nil)
