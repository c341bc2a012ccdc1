package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
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
	// Step trains on the rank's part of a batch. The loss is that of its own rows.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (ddp.Metrics, error)
	Steps() int
	// Params are copies of the whole parameters.
	Params(ctx context.Context) (params.Named[*tensors.Tensor], error)
	// Memory is what the rank holds between the passes, by kind.
	Memory() map[string]int64
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

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
	*ddp.Engine
	recipe train.Recipe
	sync   ddp.Sync
}

func newDDPEngine(backend *xla.Backend, p parallel, recipe train.Recipe, in around) (engine, int, error) {
	o, err := p.options()
	if err != nil {
		return nil, 0, err
	}
	o.Trace = in.recorder
	e, err := ddp.NewEngine(backend, recipe, o)
	return ddpEngine{e, recipe, o.Sync}, p.Data, err
}

func (e ddpEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := e.Engine.Join(ctx, g, device)
	if err != nil {
		return nil, err
	}
	return ddpRank{r, e}, nil
}

type ddpRank struct {
	*ddp.Rank
	engine ddpEngine
}

func (r ddpRank) Params(context.Context) (params.Named[*tensors.Tensor], error) {
	return r.Rank.Params()
}

// Memory leaves out the optimizer's states where they may lie on servers.
func (r ddpRank) Memory() map[string]int64 {
	tree := r.engine.recipe.Model.Params().As(r.engine.recipe.Policy().Params)
	kinds := map[string]int64{"parameters": tree.Bytes(), "gradients": 0}
	for _, b := range r.engine.Buckets() {
		kinds["gradients"] += b.Bytes()
	}
	if !r.engine.sync.Served() {
		kinds["optimizer"] = optim.States(r.engine.recipe.Rule, tree).Bytes()
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
