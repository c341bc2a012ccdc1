package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// engine has what the ranks of a run share.
type engine interface {
	// Join makes a rank of a group on a device. It is a collective call.
	Join(ctx context.Context, g group.Group, device int) (rank, error)
	Close()
}

// rank is one of the ranks that train together. Its methods are for one goroutine, but for Memory; those that take a context
// are collective calls.
type rank interface {
	// Step trains on the rank's part of a batch. The loss is that of its own rows, or of all.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error)
	Steps() int
	// Params are copies of the whole parameters.
	Params(ctx context.Context) (params.Named[*tensors.Tensor], error)
	// Memory is what the rank holds between the passes, by kind.
	Memory() map[string]int64
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

// metrics is what a step reports: how stale gradients were, besides, where servers wait for nobody.
type metrics = paramserver.Metrics

// newEngine makes what a job's ranks share, and says how many of them there are in all.
func newEngine(ctx context.Context, backend *xla.Backend, j *job, recipe train.Recipe, batch batchFunc, in around) (engine, int, error) {
	switch p := j.Parallel; {
	case p.composed():
		return newLayoutEngine(backend, j, recipe, in)
	case p.Pipe > 0:
		return newPipeEngine(ctx, backend, j, recipe, batch, in)
	case p.Zero > 0:
		return newZeroEngine(backend, p, recipe, in)
	default:
		return newDDPEngine(backend, p, recipe, in)
	}
}

// ddpEngine has ranks each of which holds everything.
type ddpEngine struct {
	backend *xla.Backend
	recipe  train.Recipe
	options ddp.Options
}

func newDDPEngine(backend *xla.Backend, p parallel, recipe train.Recipe, in around) (engine, int, error) {
	if p.Sync.Served() {
		return newServerEngine(backend, p, recipe, in)
	}
	o, err := p.options()
	if err != nil {
		return nil, 0, err
	}
	o.Trace, o.Timeout = in.recorder, patience
	_, err = o.Plan(recipe, p.Data)
	return ddpEngine{backend, recipe, o}, p.Data, err
}

func (e ddpEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := ddp.Join(ctx, g, e.backend, device, e.recipe, e.options)
	if err != nil {
		return nil, err
	}
	return ddpRank{r}, nil
}

// Close has nothing to do: ranks have programs of their own.
func (ddpEngine) Close() {}

type ddpRank struct{ train.Trainer }

func (r ddpRank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := r.Trainer.Step(ctx, inputs, targets)
	return metrics{Metrics: m}, err
}

func (r ddpRank) Memory() map[string]int64 {
	kinds := map[string]int64{}
	for _, kind := range []memest.Kind{memest.Parameters, memest.Gradients, memest.Optimizer} {
		kinds[string(kind)] = r.Trainer.Memory()[kind]
	}
	return kinds
}

// serverEngine has ranks of which some serve parameters.
type serverEngine struct {
	*paramserver.Engine
	recipe train.Recipe
	async  bool
}

func newServerEngine(backend *xla.Backend, p parallel, recipe train.Recipe, in around) (engine, int, error) {
	async := p.Sync == syncAsync
	e, err := paramserver.NewEngine(backend, recipe, paramserver.Options{Async: async, Servers: p.Servers,
		BucketBytes: int64(p.BucketBytes), Accumulate: p.Accumulate, Trace: in.recorder})
	return serverEngine{e, recipe, async}, p.Data, err
}

func (e serverEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := e.Engine.Join(ctx, g, device)
	if err != nil {
		return nil, err
	}
	return serverRank{r, e}, nil
}

type serverRank struct {
	*paramserver.Rank
	engine serverEngine
}

func (r serverRank) Params(context.Context) (params.Named[*tensors.Tensor], error) {
	return r.Rank.Params()
}

// Memory leaves out the optimizer's states, which may lie on other ranks.
func (r serverRank) Memory() map[string]int64 {
	kinds := map[string]int64{"parameters": r.engine.recipe.Model.Params().As(r.engine.recipe.Policy().Params).Bytes(), "gradients": 0}
	for _, b := range r.engine.Buckets() {
		kinds["gradients"] += b.Bytes()
	}
	return kinds
}

// zeroEngine has ranks that hold shards.
type zeroEngine struct {
	backend *xla.Backend
	recipe  train.Recipe
	options zero.Options
	memory  map[string]int64
}

func newZeroEngine(backend *xla.Backend, p parallel, recipe train.Recipe, in around) (engine, int, error) {
	o := p.zeroOptions()
	bytes, err := o.Bytes(recipe, p.Data)
	o.Timeout, o.Trace = patience, in.recorder
	return zeroEngine{backend, recipe, o, byName(bytes)}, p.Data, err
}

func (e zeroEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := zero.Join(ctx, g, e.backend, device, e.recipe, e.options)
	if err != nil {
		return nil, err
	}
	return planRank{r, e.memory}, nil
}

// Close has nothing to do: ranks have programs of their own.
func (e zeroEngine) Close() {}
