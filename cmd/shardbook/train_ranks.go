package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// ranks train the model and hold its state: all ranks, or with MPI the one of this process. A program on all devices is
// one rank. When one fails, all end. The methods are for one goroutine.
type ranks struct {
	backend *xla.Backend
	recipe  train.Recipe
	around
	link  group.Link     // the simulated link between them
	plan  *parallel.Plan // nil with parameter servers
	loads []string       // the parameters that are loads of experts
	lag   int            // how many steps a rank may be ahead of another
	ranks []rank
	close func()          // frees what all ranks use; may be nil
	ctx   context.Context // ends with the first error
	fail  context.CancelCauseFunc
	steps int
}

// rank is one of the ranks that train together, or all of a plan that this process has, or one program. Its methods are
// for one goroutine; those that take a context are collective calls.
type rank interface {
	// Step trains on the rank's part of a batch. The loss is the mean over its own sequences, or over all.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error)
	Steps() int
	// Params are copies of the rank's parameters, unsharded: all, or those named.
	Params(ctx context.Context, names ...string) (params.Named[*tensors.Tensor], error)
	// Memory is the bytes on a device, by kind.
	Memory() (map[string]int64, error)
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

// around is what ranks need besides their devices.
type around struct {
	bandwidth flags.Bytes     // of the simulated link, in bytes per second; 0 is none
	recorder  *trace.Recorder // nil records nothing
	mpi       *mpijob.Job     // nil has all ranks in this process
}

// metrics are the results of a step.
type metrics struct {
	train.Metrics
	Staleness float64 // of gradients, with asynchronous parameter servers
	Bytes     int64   // on a device while a step runs
	Experts   expertMetrics
}

// batchFunc returns the batch of a step, counted from 0. It may be called by several goroutines at once.
type batchFunc func(step int) (inputs, targets *tensors.Tensor, err error)

// newRanks starts a run of a job in a layout on the backend's devices.
func newRanks(ctx context.Context, backend *xla.Backend, j *job.Job, l parallel.Layout, recipe train.Recipe,
	batch batchFunc, in around) (*ranks, error) {
	r := &ranks{backend: backend, recipe: recipe, around: in, link: group.Link{Bandwidth: float64(in.bandwidth)},
		loads: loadNames(recipe.Model.Params()), lag: 1}
	r.ctx, r.fail = context.WithCancelCause(in.mpi.Context(ctx))
	var err error
	switch p := j.Parallel; {
	case p.Sync.Served():
		err = r.serve(p)
	case !p.Planned():
		err = r.program(j, l)
	default:
		if r.plan, err = planOn(ctx, backend, j, l, recipe, batch, in.mpi); err == nil {
			err = r.carryOut(p.OneProgram())
		}
	}
	if err != nil {
		if in.mpi == nil { // with MPI the process ends
			r.Close()
		}
		return nil, job.InFlags(err)
	}
	return r, nil
}

// join starts the process's ranks, n of them.
func (r *ranks) join(n int, start func(ctx context.Context, i int) (rank, error)) error {
	r.ranks = make([]rank, n)
	return r.each(func(i int) error {
		one, err := start(r.ctx, i)
		if err == nil {
			r.ranks[i] = one
		}
		return err
	})
}

// each calls do for all ranks at once, and returns the first error: others may be its consequence.
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

// Steps is the number of steps since the beginning of the run.
func (r *ranks) Steps() int { return r.steps }

// ahead is how many reports of a rank may wait for those of others.
const ahead = 64

// Train trains up to a step, counted from 1, and calls done after each step, in order. When the context ends, it
// returns nil after the current step; see Steps. When done returns an error, it stops and returns that error.
func (r *ranks) Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	gate := newGate(ctx, r)
	reports := make([]chan metrics, len(r.ranks))
	for i := range reports {
		reports[i] = make(chan metrics, ahead)
	}
	var failed error // of done
	var reader sync.WaitGroup
	reader.Go(func() {
		if err := gate.open(); err != nil {
			r.fail(err)
		}
		for own, more := allReports(reports); more; own, more = allReports(reports) {
			all, err := gate.agree(own)
			if err != nil {
				r.fail(err) // and the reports end
				continue
			}
			r.steps++
			if failed == nil {
				if failed = done(mean(all)); failed != nil {
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
			if err == nil && r.loads != nil {
				var all params.Named[*tensors.Tensor]
				if all, err = one.Params(r.ctx, r.loads...); err == nil {
					m.Experts, err = measured(all)
				}
			}
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
	return cmp.Or(failed, err, context.Cause(r.ctx))
}

// allReports returns the next report of each rank of this process; false if a rank has no more.
func allReports(reports []chan metrics) (all []metrics, more bool) {
	for _, c := range reports {
		m, more := <-c
		if !more {
			return nil, false
		}
		all = append(all, m)
	}
	return all, true
}

// mean merges the ranks' reports of a step. Ranks have equally many sequences, so that the mean of their losses is the
// batch's. Everything else is the same on all ranks that exchange gradients.
func mean(all []metrics) metrics {
	m := all[0]
	var loss, staleness float64
	m.Experts = expertMetrics{}
	for _, one := range all {
		loss, staleness = loss+one.Loss, staleness+one.Staleness
		m.Experts = m.Experts.with(one.Experts)
	}
	n := float64(len(all))
	m.Loss, m.Staleness = loss/n, staleness/n
	return m
}

func (r *ranks) Save(_ context.Context, dir string, meta any, keep int) error {
	return r.byFirst(func(one rank) error { return one.Save(r.ctx, dir, meta, keep) })
}

func (r *ranks) Load(_ context.Context, c *checkpoint.Checkpoint) error {
	err := r.byFirst(func(one rank) error { return one.Load(r.ctx, c) })
	r.steps = r.ranks[0].Steps()
	return err
}

// byFirst is each for what rank 0 does for all. It prefers rank 0's error, which says more than those of the others.
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

// peak is the most bytes that a device has held so far.
func (r *ranks) peak() int64 { return slices.Max(r.backend.PeakBytes()) }

// Memory is the most bytes of each kind on a device. With MPI it is a collective call.
func (r *ranks) Memory() (map[string]int64, error) {
	kinds := map[string]int64{}
	for _, one := range r.ranks {
		own, err := one.Memory()
		if err != nil {
			return nil, err
		}
		for kind, n := range own {
			kinds[kind] = max(kinds[kind], n)
		}
	}
	return r.mpi.Most(kinds)
}

// Params are copies of the full parameters: all, or those named. With MPI it is a collective call.
func (r *ranks) Params(names ...string) (params.Named[*tensors.Tensor], error) {
	all := make([]params.Named[*tensors.Tensor], len(r.ranks))
	if err := r.each(func(i int) (err error) {
		all[i], err = r.ranks[i].Params(r.ctx, names...)
		return err
	}); err != nil {
		return nil, err
	}
	full := params.Named[*tensors.Tensor]{} // ranks of a pipeline have a part each
	for _, own := range all {
		maps.Copy(full, own)
	}
	tree := r.recipe.Model.Params().As(r.recipe.Policy().Params)
	if names != nil {
		tree = slices.DeleteFunc(tree, func(s params.Spec) bool { return !slices.Contains(names, s.Name) })
	}
	return full, r.mpi.Gather(tree, full)
}

func (r *ranks) Close() error {
	err := r.each(func(i int) error {
		if r.ranks[i] == nil {
			return nil
		}
		return r.ranks[i].Close()
	})
	if r.close != nil {
		r.close()
	}
	r.fail(nil)
	return err
}

// gate makes all ranks stop after the same step.
type gate struct {
	ctx context.Context // ends when the run is interrupted
	run context.Context // that of the ranks' calls
	mpi *mpijob.Job

	// Without MPI: a step that one rank has begun, all ranks do.
	mu    sync.Mutex
	begun int // steps

	// With MPI: after each step the processes agree on whether to stop. A rank begins a step only after they have
	// agreed on the one lag steps before it.
	lag    int
	agreed chan bool
}

// asyncLag is the lag of ranks that do not wait for each other. The slowest must do this many steps within the timeout.
const asyncLag = 8

func newGate(ctx context.Context, r *ranks) *gate {
	return &gate{ctx: ctx, run: r.ctx, mpi: r.mpi, begun: r.steps, lag: r.lag, agreed: make(chan bool, ahead)}
}

// pass reports whether a rank may begin a step, counted from 0. It waits until that is known.
func (g *gate) pass(step int) bool {
	if g.mpi != nil {
		select {
		case more := <-g.agreed:
			return more
		case <-g.run.Done():
			return false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if step == g.begun && g.ctx.Err() == nil {
		g.begun++
	}
	return step < g.begun
}

// open agrees on whether to begin at all. It is a collective call of the processes.
func (g *gate) open() error {
	_, err := g.agree(nil)
	for range g.lag - 1 {
		g.agreed <- true
	}
	return err
}

// agree sends the ranks' reports on a step to all processes, and makes them agree on whether to stop. It is a
// collective call of the processes; without MPI it returns the reports that it is given.
func (g *gate) agree(own []metrics) (all []metrics, err error) {
	if g.mpi == nil {
		return own, nil
	}
	const numbers = 6 // of each rank
	mine := [numbers]float64{}
	if len(own) > 0 {
		e := own[0].Experts
		mine = [numbers]float64{own[0].Loss, own[0].Staleness, 0, e.Balance, e.Dropped, e.Blocks}
	}
	if g.ctx.Err() != nil {
		mine[2] = 1
	}
	told := make([]float64, numbers*g.mpi.Size())
	if err := group.AllGather(g.run, g.mpi.Talk, mine[:], told); err != nil {
		return nil, err
	}
	stop := false
	for ; len(told) > 0; told = told[numbers:] {
		stop = stop || told[2] > 0
		if len(own) > 0 {
			m := own[0]
			m.Loss, m.Staleness, m.Experts = told[0], told[1], expertMetrics{told[3], told[4], told[5]}
			all = append(all, m)
		}
	}
	select {
	case g.agreed <- !stop:
	case <-g.run.Done():
	}
	return all, nil
}
