package paramserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Programs has the compiled programs of a recipe. The ranks of a process share it: each runs them on its own device.
type Programs struct {
	backend *xla.Backend
	recipe  train.Recipe
	options Options
	policy  precision.Policy
	plan    *step.Plan // of one rank, with its own updates, in buckets
	members [][]int
	buckets []ddp.Bucket
	updates []*xla.Portable // of the buckets
	sum     *xla.Portable   // of their gradients
	staged  bool            // for tests: see engine.Options.Staged

	mu      sync.Mutex
	workers map[int]*engine.Programs // by the size of the group
	closed  bool
}

// BetweenRanks names, in a rank's Traffic, the bytes sent to other ranks since the last step, as worker and as server.
const BetweenRanks = "servers"

// patience is the maximal time of a pass, including its compilation.
const patience = time.Hour

// NewPrograms makes the engine of a recipe. The model is a chain of blocks (such as gpt.Config: see package chain); any
// other model is one block. Programs are compiled when they are first run. It returns an error for invalid options,
// recipes or models.
func NewPrograms(backend *xla.Backend, r train.Recipe, o Options) (*Programs, error) {
	if backend == nil {
		return nil, errors.New("paramserver: the backend is nil: open one with xla.Open")
	}
	if err := o.validFor(r); err != nil {
		return nil, err
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return nil, err
	}
	r.Model, r.Precision = model, r.Policy() // parameters may now be in another order
	if r.Precision.Reduce.IsHalfPrecision() {
		r.Precision.Reduce = r.Precision.Params // parameters are returned in the place of gradients
	}
	o = o.withDefaults()
	e := &Programs{backend: backend, recipe: r, options: o, policy: r.Precision, workers: map[int]*engine.Programs{}}
	e.plan, e.members = engine.Serial(model, o.Accumulate)
	e.plan.Name = "parameter servers"
	if o.Recompute {
		e.plan = recompute.Blocks(e.plan)
	}
	tree := model.Params().As(e.policy.Reduce)
	var bytes []int64
	for _, s := range tree {
		bytes = append(bytes, s.Bytes())
	}
	e.plan, e.members = ddp.IntoBuckets(e.plan, e.members, bytes, o.BucketBytes)
	e.buckets = ddp.BucketsOf(e.members, tree)
	return e, e.compileServers()
}

// planOf returns what each rank does in a step. The servers' hook replaces its reductions.
func (e *Programs) planOf(ranks int) *step.Plan {
	p := e.plan.Replicate(ranks, BetweenRanks)
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	p.Axes = []step.Axis{{Name: BetweenRanks, Size: ranks, Groups: [][]int{all}}} // also for one rank
	for u := range p.Units {
		p.Units[u].Reduce = []string{BetweenRanks}
	}
	return ddp.Average(p, true, false)
}

// programs returns the workers' programs for a group of the given size.
func (e *Programs) programs(ranks int) (*engine.Programs, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("paramserver: the engine is closed: make a new one")
	}
	if p := e.workers[ranks]; p != nil {
		return p, nil
	}
	serve := func() engine.Server { return &client{engine: e} }
	p, err := engine.New(e.backend, engine.Spec{
		Recipe: e.recipe, Plans: []*step.Plan{e.planOf(ranks)}, Members: e.members,
		Options: engine.Options{Serve: serve, Sum: true, Blockwise: true, Staged: e.staged, Timeout: patience,
			Trace: e.options.Trace},
	})
	if err == nil {
		e.workers[ranks] = p
	}
	return p, err
}

// Join makes this process one rank of a group, on one of the backend's devices. It is a collective call: all ranks
// start with rank 0's initial state. Servers run until the rank is closed or the context ends.
func (e *Programs) Join(ctx context.Context, g group.Group, device int) (*Worker, error) {
	if servers := e.options.Servers; servers > g.Size() {
		return nil, fmt.Errorf("paramserver: Options.Servers is %d, more than the %d ranks of the group: "+
			"set it to at most that, or to 0 for all", servers, g.Size())
	}
	p, err := e.programs(g.Size())
	if err != nil {
		return nil, err
	}
	worker, err := p.Join(ctx, g, device)
	if err != nil {
		return nil, err
	}
	return &Worker{worker, worker.Server().(*client)}, nil
}

// Buckets returns the buckets of the gradients, in the order in which backward passes fill them.
func (e *Programs) Buckets() []ddp.Bucket { return e.buckets }

// Close frees the programs. None of them may run.
func (e *Programs) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, p := range e.workers {
		p.Close()
	}
	for _, p := range append(e.updates, e.sum) {
		p.Close()
	}
}

// own lists a bucket's parameters in the type of their master weights.
func (e *Programs) own(bucket int) params.Tree { return e.buckets[bucket].Params.As(e.policy.Params) }
