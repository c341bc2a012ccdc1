package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// ranks is a runner of ranks in this process, each with a device of its own. What fails on one ends all.
type ranks struct {
	backend *xla.Backend
	recipe  train.Recipe
	options ddp.Options
	engine  *ddp.Engine
	ranks   []*ddp.Rank
	ctx     context.Context // ends with the first error
	fail    context.CancelCauseFunc
	steps   int
}

// patience is how long ranks wait for each other: for the compiler, say. One that fails tells the others at once.
const patience = time.Hour

// newRanks starts n ranks. Their calls take as long as over a link of so many bytes a second; 0 is no limit.
func newRanks(ctx context.Context, backend *xla.Backend, recipe train.Recipe, options ddp.Options, n int, link float64) (*ranks, error) {
	engine, err := ddp.NewEngine(backend, recipe, options)
	if err != nil {
		return nil, inFlags(err)
	}
	r := &ranks{backend: backend, recipe: recipe, options: options, engine: engine, ranks: make([]*ddp.Rank, n)}
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
			r.ranks[i], err = engine.Join(r.ctx, g, i)
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
		for rank := r.ranks[i]; rank.Steps() < until && gate.pass(rank.Steps()); {
			inputs, targets, err := batch(rank.Steps())
			if err != nil {
				return err
			}
			m, err := rank.Step(r.ctx, inputs, targets)
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
	return r.byFirst(func(rank *ddp.Rank) error { return rank.Save(r.ctx, dir, meta, keep) })
}

func (r *ranks) Load(_ context.Context, c *checkpoint.Checkpoint) error {
	err := r.byFirst(func(rank *ddp.Rank) error { return rank.Load(r.ctx, c) })
	r.steps = r.ranks[0].Steps()
	return err
}

// byFirst is each for what rank 0 does for all: its own error says more than what the others hear of it.
func (r *ranks) byFirst(do func(rank *ddp.Rank) error) error {
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

// Memory has the peak on a device, with what is kept between steps. The optimizer's states may lie on servers.
func (r *ranks) Memory() (map[string]int64, error) {
	tree := r.recipe.Model.Params().As(r.recipe.Policy().Params)
	peak, err := r.Bytes()
	kinds := map[string]int64{"parameters": tree.Bytes(), "gradients": 0, "peak": peak}
	for _, b := range r.engine.Buckets() {
		kinds["gradients"] += b.Bytes()
	}
	if !r.options.Sync.Served() {
		kinds["optimizer"] = optim.States(r.recipe.Rule, tree).Bytes()
	}
	return kinds, err
}

// rankProbe is a probe of rank 0's parameters.
type rankProbe struct {
	program *xla.Portable
	weights []*tensors.Tensor
}

func (r *ranks) Probe(fn probeFunc) (probe, error) {
	policy := r.recipe.Policy()
	tree := r.recipe.Model.Params().As(policy.Compute)
	named, err := r.ranks[0].Params()
	if err != nil {
		return nil, err
	}
	weights, err := named.List(tree)
	if err != nil {
		return nil, err
	}
	p := &rankProbe{}
	for _, w := range weights {
		placed, err := r.backend.Put(w, 0)
		if err != nil {
			return nil, err
		}
		p.weights = append(p.weights, placed)
	}
	p.program, err = xla.CompilePortable(r.backend, func(in []*graph.Node) []*graph.Node {
		weights := precision.Cast(in[:len(tree)], policy.Compute)
		return fn(tree.Nodes(weights), in[len(tree):])
	})
	return p, err
}

func (p *rankProbe) Call(args ...any) ([]*tensors.Tensor, error) {
	var all []any
	for _, w := range p.weights {
		all = append(all, w)
	}
	return p.program.Call(0, append(all, args...)...)
}

func (p *rankProbe) Close() {
	p.program.Close()
	for _, w := range p.weights {
		w.FinalizeAll()
	}
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
