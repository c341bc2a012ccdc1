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

// Engine has the programs of a recipe, which the ranks of this process share: each runs them on a device of its own.
type Engine struct {
	backend *xla.Backend
	recipe  train.Recipe
	options Options
	policy  precision.Policy
	plan    *step.Plan // of one rank, which updates by itself, in buckets
	members [][]int
	buckets []ddp.Bucket
	updates []*xla.Portable // of the buckets, and
	sum     *xla.Portable   // of their gradients
	staged  bool            // for tests: see engine.Options.Staged

	mu      sync.Mutex
	workers map[int]*engine.Programs // by the size of the group
	closed  bool
}

// BetweenRanks is the name, in a rank's Traffic, of what it has sent to the others, as worker and as server, since the
// step before.
const BetweenRanks = "servers"

// patience is how long a pass may take, with its compilation.
const patience = time.Hour

// NewEngine makes the engine of a recipe, whose model is best a chain of blocks (chain.Chained, as gpt.Config is):
// any other is one block. Programs are compiled when they are first run. Options, a recipe or a model that are not
// valid are errors.
func NewEngine(backend *xla.Backend, r train.Recipe, o Options) (*Engine, error) {
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
	r.Model, r.Precision = model, r.Policy() // whose parameters may be in another order
	if r.Precision.Reduce.IsHalfPrecision() {
		r.Precision.Reduce = r.Precision.Params // the parameters come back in the gradients' place
	}
	o = o.withDefaults()
	e := &Engine{backend: backend, recipe: r, options: o, policy: r.Precision, workers: map[int]*engine.Programs{}}
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

// planOf is what each of so many ranks does in a step: what its hook takes in place of a sum over them is for the
// servers.
func (e *Engine) planOf(ranks int) *step.Plan {
	p := e.plan.Replicate(ranks, BetweenRanks)
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	p.Axes = []step.Axis{{Name: BetweenRanks, Size: ranks, Groups: [][]int{all}}} // of one rank, too
	for u := range p.Units {
		p.Units[u].Reduce = []string{BetweenRanks}
	}
	return ddp.Average(p, true, false)
}

// programs are those of the workers in a group of so many ranks.
func (e *Engine) programs(ranks int) (*engine.Programs, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("paramserver: the engine is closed: make another")
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

// Join makes this process's rank of a group, which runs on one of the backend's devices. It is a collective call: all
// ranks get rank 0's state, which is the recipe's initial one. Servers run until the rank is closed or the context
// ends.
func (e *Engine) Join(ctx context.Context, g group.Group, device int) (*Rank, error) {
	if servers := e.options.Servers; servers > g.Size() {
		return nil, fmt.Errorf("paramserver: Options.Servers is %d in a group of %d ranks: "+
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
	return &Rank{worker, worker.Server().(*client)}, nil
}

// Buckets returns the buckets of the gradients, in the order in which they are filled.
func (e *Engine) Buckets() []ddp.Bucket { return e.buckets }

// Close frees the programs, once none of them runs.
func (e *Engine) Close() {
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

// own lists a bucket's parameters in the type that they are kept in.
func (e *Engine) own(bucket int) params.Tree { return e.buckets[bucket].Params.As(e.policy.Params) }
