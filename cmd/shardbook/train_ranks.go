package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// ranks is a runner of ranks in this process, each with a device of its own. What fails on one ends all.
type ranks struct {
	backend *xla.Backend
	recipe  train.Recipe
	engine  engine
	ranks   []rank
	ctx     context.Context // ends with the first error
	fail    context.CancelCauseFunc
	steps   int
}

// patience is how long ranks wait for each other: for the compiler, say. One that fails tells the others at once.
const patience = time.Hour

// newRanks starts n ranks of an engine, which it closes in the end. Their calls take as long as over a link of so many bytes
// a second; 0 is no limit.
func newRanks(ctx context.Context, backend *xla.Backend, recipe train.Recipe, e engine, n int, link float64) (*ranks, error) {
	r := &ranks{backend: backend, recipe: recipe, engine: e, ranks: make([]rank, n)}
	r.ctx, r.fail = context.WithCancelCause(context.WithoutCancel(ctx)) // what is interrupted ends a step first
	groups, err := group.New(n, group.Timeout(patience))
	if err == nil {
		err = r.each(func(i int) (err error) {
			g := groups[i]
			if link > 0 {
				if g, err = group.Slow(g, group.Link{Bandwidth: link}); err != nil {
					return err
				}
			}
			r.ranks[i], err = e.Join(r.ctx, g, i)
			return err
		})
	}
	if err != nil {
		r.Close()
		return nil, inFlags(err)
	}
	return r, nil
}

// each does something on all ranks at once, and returns the first error, of which others may be the consequence.
func (r *ranks) each(do func(i int) error) error {
	var all sync.WaitGroup
	for i := range r.ranks {
		all.Go(func() {
			if err := do(i); err != nil {
				r.fail(err)
			}
		})
	}
	all.Wait()
	return context.Cause(r.ctx)
}

func (r *ranks) Steps() int { return r.steps }

// ahead is by how many steps a rank may be ahead of others that it does not have to wait for.
const ahead = 64

func (r *ranks) Train(ctx context.Context, until int, batch batchFunc, done func(ddp.Metrics) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	gate := &gate{ctx: ctx, begun: r.steps}
	reports := make([]chan ddp.Metrics, len(r.ranks))
	for i := range reports {
		reports[i] = make(chan ddp.Metrics, ahead)
	}
	var failed error // of done
	var reader sync.WaitGroup
	reader.Go(func() {
		for m, more := wholeStep(reports); more; m, more = wholeStep(reports) {
			r.steps++
			if failed == nil {
				if failed = done(m); failed != nil {
					stop()
				}
			}
		}
	})
	err := r.each(func(i int) error {
		defer close(reports[i])
		for one := r.ranks[i]; one.Steps() < until && gate.pass(one.Steps()); {
			inputs, targets, err := batch(one.Steps())
			if err != nil {
				return err
			}
			m, err := one.Step(r.ctx, inputs, targets)
			if err != nil {
				return err
			}
			select {
			case reports[i] <- m:
			case <-r.ctx.Done():
				return context.Cause(r.ctx)
			}
		}
		return nil
	})
	reader.Wait()
	return cmp.Or(failed, err)
}

// gate has all ranks stop behind the same step.
type gate struct {
	ctx   context.Context
	mu    sync.Mutex
	begun int // steps
}

// pass says whether a rank may begin a step, counted from 0: what one has begun all do.
func (g *gate) pass(step int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if step == g.begun && g.ctx.Err() == nil {
		g.begun++
	}
	return step < g.begun
}

// wholeStep puts the ranks' next reports together; false if there is one that has no more. Ranks have equally many rows,
// so that the mean of their losses is the batch's. All else is the same on all ranks, where they share gradients.
func wholeStep(reports []chan ddp.Metrics) (ddp.Metrics, bool) {
	var whole ddp.Metrics
	var loss, staleness float64
	for i, c := range reports {
		m, more := <-c
		if !more {
			return whole, false
		}
		if i == 0 {
			whole = m
		}
		loss, staleness = loss+m.Loss, staleness+m.Staleness
	}
	n := float64(len(reports))
	whole.Loss, whole.Staleness = loss/n, staleness/n
	return whole, true
}

func (r *ranks) Save(_ context.Context, dir string, meta any, keep int) error {
	return r.byFirst(func(one rank) error { return one.Save(r.ctx, dir, meta, keep) })
}

func (r *ranks) Load(_ context.Context, c *checkpoint.Checkpoint) error {
	err := r.byFirst(func(one rank) error { return one.Load(r.ctx, c) })
	r.steps = r.ranks[0].Steps()
	return err
}

// byFirst is each for what rank 0 does for all: its own error says more than what the others hear of it.
func (r *ranks) byFirst(do func(one rank) error) error {
	var own error
	err := r.each(func(i int) error {
		err := do(r.ranks[i])
		if i == 0 {
			own = err
		}
		return err
	})
	return cmp.Or(own, err)
}

func (r *ranks) Bytes() (int64, error) { return slices.Max(r.backend.PeakBytes()), nil }

// Memory has the peak on a device, with the most of each kind that a rank holds.
func (r *ranks) Memory() (map[string]int64, error) {
	peak, err := r.Bytes()
	kinds := map[string]int64{"peak": peak}
	for _, one := range r.ranks {
		for kind, n := range one.Memory() {
			kinds[kind] = max(kinds[kind], n)
		}
	}
	return kinds, err
}

func (r *ranks) Probe(fn probeFunc) (probe, error) {
	all := make([]params.Named[*tensors.Tensor], len(r.ranks))
	if err := r.each(func(i int) (err error) {
		all[i], err = r.ranks[i].Params(r.ctx)
		return err
	}); err != nil {
		return nil, err
	}
	whole := params.Named[*tensors.Tensor]{} // ranks of a pipeline have a part each
	for _, own := range all {
		maps.Copy(whole, own)
	}
	return newProbe(r.backend, r.recipe, whole, fn)
}

func (r *ranks) Close() error {
	err := r.each(func(i int) error {
		if r.ranks[i] == nil {
			return nil
		}
		return r.ranks[i].Close()
	})
	r.engine.Close()
	r.fail(nil)
	return err
}
