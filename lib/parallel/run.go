package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Run is all ranks of a layout in this process, as goroutines. Its methods are for one goroutine.
type Run struct {
	*Plan
	ranks []*Rank
	ctx   context.Context // ends with the first error
	fail  context.CancelCauseFunc
}

// patience is how long ranks of a process wait for each other, for the compiler, say. One that fails tells the others at once.
const patience = time.Hour

// New starts a run of a recipe in a layout on the backend's first devices. A layout that needs more is an error, and so is what
// [NewPlan] refuses.
func New(ctx context.Context, backend *xla.Backend, recipe train.Recipe, l Layout, o Options) (*Run, error) {
	if backend == nil {
		return nil, errors.New("parallel: the backend is nil: open one with xla.Open")
	}
	plan, err := NewPlan(recipe, l)
	if err != nil {
		return nil, err
	}
	if have := backend.NumDevices(); int(have) < plan.layout.Devices() {
		return nil, fmt.Errorf("parallel: the layout has %d devices, and the backend %d: open more with xla.Devices", plan.layout.Devices(), have)
	}
	groups, err := group.New(plan.layout.Ranks(), group.Timeout(patience))
	if err != nil {
		return nil, err
	}
	r := &Run{Plan: plan, ranks: make([]*Rank, len(groups))}
	r.ctx, r.fail = context.WithCancelCause(context.WithoutCancel(ctx)) // what is interrupted ends a step first
	o.Timeout = cmp.Or(o.Timeout, patience)
	err = r.each(func(i int) (err error) {
		r.ranks[i], err = plan.Join(r.ctx, groups[i], backend, i*plan.layout.PerRank(), o)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// each does something on all ranks at once, and returns the first error, of which others may be the consequence.
func (r *Run) each(do func(i int) error) error {
	return rank.Each(r.ctx, r.fail, len(r.ranks), do)
}

// Step trains on one batch, inputs and targets of shape (B,…): see [Rank.Step]. The loss is the mean over all of it. A batch that
// cannot be dealt out leaves the run as it was.
func (r *Run) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	all := make([]train.Metrics, len(r.ranks))
	if err := r.byFirst(func(i int) (err error) {
		all[i], err = r.ranks[i].Step(r.ctx, inputs, targets)
		return err
	}); err != nil {
		return train.Metrics{}, err
	}
	m := all[0]
	for _, other := range all[1:] {
		m.Loss += other.Loss
	}
	m.Loss /= float64(r.layout.Replicas)
	return m, nil
}

// Steps is the number of batches trained on, and so the number of the next one, from 0.
func (r *Run) Steps() int { return r.ranks[0].Steps() }

// Params returns copies of the whole parameters, by name and in the type that they are kept in.
func (r *Run) Params() (params.Named[*tensors.Tensor], error) {
	whole := params.Named[*tensors.Tensor]{}
	for _, one := range r.ranks[:r.layout.Pipe] {
		own, err := one.Params()
		if err != nil {
			return nil, err
		}
		maps.Copy(whole, own)
	}
	return whole, nil
}

// Traffic is [Rank.Traffic] of the rank that sent most, by each name.
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

// Save is [Rank.Save] of all ranks.
func (r *Run) Save(dir string, meta any, keep int) error {
	return r.byFirst(func(i int) error { return r.ranks[i].Save(r.ctx, dir, meta, keep) })
}

// Load is [Rank.Load] of all ranks.
func (r *Run) Load(c *checkpoint.Checkpoint) error {
	return r.byFirst(func(i int) error { return r.ranks[i].Load(r.ctx, c) })
}

// byFirst is each for what leaves the ranks as they were where it fails: the first rank's error says most.
func (r *Run) byFirst(do func(i int) error) error {
	errs := make([]error, len(r.ranks))
	if err := r.each(func(i int) error {
		if errs[i] = do(i); r.ranks[i].lost != nil {
			return errs[i]
		}
		return nil
	}); err != nil {
		return err
	}
	return cmp.Or(errs...)
}

// Close frees what the ranks have.
func (r *Run) Close() error {
	var errs []error
	for _, one := range r.ranks {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	r.fail(errors.New("parallel: the run is closed: start another"))
	return errors.Join(errs...)
}
