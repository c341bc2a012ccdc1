package main

import (
	"context"
	"math"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// pipeEngine has ranks each of which holds some stages of the model.
type pipeEngine struct {
	*pipeline.Pipeline
	recipe   train.Recipe
	schedule schedule.Schedule
}

func newPipeEngine(ctx context.Context, backend *xla.Backend, j *job, recipe train.Recipe, batch batchFunc, in around) (engine, int, error) {
	s, err := j.Parallel.schedule(j.Batch)
	if err != nil {
		return nil, 0, err
	}
	engine, err := pipeline.NewEngine(backend, recipe)
	if err != nil {
		return nil, 0, err
	}
	made, err := newPipeline(ctx, engine, j.Parallel, s, batch, in)
	if err != nil {
		engine.Close()
		return nil, 0, err
	}
	return pipeEngine{made, recipe, s}, made.Ranks(), nil
}

// newPipeline cuts the model into stages.
func newPipeline(ctx context.Context, engine *pipeline.Engine, p parallel, s schedule.Schedule, batch batchFunc, in around) (*pipeline.Pipeline, error) {
	cut, err := p.cutList()
	if p.Cut == cutMeasured {
		cut, err = measuredCut(ctx, engine, s, p.Data, batch)
		if err == nil {
			var all [][]int
			if all, err = shared(in.crew, cut); err == nil {
				cut = all[0] // each process has measured other times
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return engine.Pipeline(pipeline.Options{Schedule: s, Cut: cut, Replicas: p.Data, Recompute: p.RecomputeStages,
		Timeout: patience, Trace: in.recorder})
}

// measuredCut balances the stages by how long the blocks take for a micro-batch on device 0.
func measuredCut(ctx context.Context, engine *pipeline.Engine, s schedule.Schedule, pipelines int, batch batchFunc) ([]int, error) {
	inputs, targets, err := batch(0)
	if err != nil {
		return nil, err
	}
	part := func(whole *tensors.Tensor) shapes.Shape {
		dims := slices.Clone(whole.Shape().Dimensions)
		dims[0] /= pipelines * s.Microbatches
		return shapes.Make(whole.DType(), dims...)
	}
	blocks, err := engine.Measure(ctx, 0, part(inputs), part(targets))
	if err != nil {
		return nil, err
	}
	var costs []float64
	for _, b := range blocks {
		costs = append(costs, (b.Forward + b.InputGrad + b.WeightGrad).Seconds())
	}
	return pipeline.Balance(costs, nil, math.Inf(1), s.Stages)
}

func (e pipeEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := e.Pipeline.Join(ctx, g, device)
	if err != nil {
		return nil, err
	}
	memory, err := e.memory(g.Rank() % len(e.schedule.Ranks))
	return pipeRank{r, len(e.schedule.Ranks), memory}, err
}

// memory is what a rank holds between the passes: of the weights as many versions as there can be.
func (e pipeEngine) memory(at int) (map[string]int64, error) {
	model, err := chain.Of(e.recipe.Model)
	if err != nil {
		return nil, err
	}
	kept, err := e.schedule.KeptVersions()
	if err != nil {
		return nil, err
	}
	all, policy := model.Blocks, e.recipe.Policy()
	model.Blocks = nil
	kinds, versions, first := map[string]int64{}, 1, 0
	for stage, n := range e.Cut() {
		blocks := all[first : first+n]
		first += n
		if !slices.Contains(e.schedule.On(at), stage) {
			continue
		}
		model.Blocks = append(model.Blocks, blocks...)
		versions = max(versions, kept[at][stage])
		for _, b := range blocks {
			kinds["gradients"] += b.Params.As(policy.Reduce).Bytes()
		}
	}
	tree := model.Params().As(policy.Params)
	kinds["parameters"] = int64(versions) * tree.Bytes()
	kinds["optimizer"] = optim.States(e.recipe.Rule, tree).Bytes()
	return kinds, nil
}

type pipeRank struct {
	*pipeline.Rank
	ranks  int // of a pipeline
	memory map[string]int64
}

// Step gives a loss whose mean over all ranks is that of the batch: only ranks with the last stage know any.
func (r pipeRank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (ddp.Metrics, error) {
	m, err := r.Rank.Step(ctx, inputs, targets)
	m.Loss *= float64(r.ranks)
	return ddp.Metrics{Metrics: m}, err
}

// Params are the rank's.
func (r pipeRank) Params(context.Context) (params.Named[*tensors.Tensor], error) {
	return r.Rank.Params()
}

func (r pipeRank) Memory() map[string]int64 { return r.memory }
