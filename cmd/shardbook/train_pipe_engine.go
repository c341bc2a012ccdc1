package main

import (
	"context"
	"math"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// pipeEngine has ranks each of which holds some stages of the model.
type pipeEngine struct {
	backend *xla.Backend
	recipe  train.Recipe
	options pipeline.Options
	plan    *step.Plan
}

func newPipeEngine(ctx context.Context, backend *xla.Backend, j *job, recipe train.Recipe, batch batchFunc, in around) (engine, int, error) {
	p := j.Parallel
	s, err := p.schedule(j.Batch)
	if err != nil {
		return nil, 0, err
	}
	o := pipeline.Options{Schedule: s, Replicas: p.Data, Recompute: p.RecomputeStages, Timeout: patience, Trace: in.recorder}
	if o.Cut, err = p.cutBlocks(ctx, backend, recipe, s, batch, in.crew); err != nil {
		return nil, 0, err
	}
	plan, err := o.Plan(recipe)
	if err != nil {
		return nil, 0, err
	}
	return pipeEngine{backend, recipe, o, plan}, len(plan.Ranks), nil
}

// cutBlocks is how many blocks each stage has. With a crew it is a collective call.
func (p *parallel) cutBlocks(ctx context.Context, backend *xla.Backend, recipe train.Recipe, s *step.Plan, batch batchFunc, c *crew) ([]int, error) {
	if p.Cut != cutMeasured {
		cut, err := p.cutList()
		if err != nil || cut != nil {
			return cut, err
		}
		model, err := chain.Of(recipe.Model)
		if err != nil {
			return nil, err
		}
		return pipeline.Even(len(model.Blocks), len(s.Blocks))
	}
	cut, err := measuredCut(ctx, backend, recipe, s, p.Data, batch)
	if err != nil {
		return nil, err
	}
	all, err := shared(c, cut)
	if err != nil {
		return nil, err
	}
	return all[0], nil // each process has measured other times
}

// measuredCut balances the stages by how long the blocks take for a micro-batch on device 0.
func measuredCut(ctx context.Context, backend *xla.Backend, recipe train.Recipe, s *step.Plan, pipelines int, batch batchFunc) ([]int, error) {
	inputs, targets, err := batch(0)
	if err != nil {
		return nil, err
	}
	part := func(whole *tensors.Tensor) shapes.Shape {
		dims := slices.Clone(whole.Shape().Dimensions)
		dims[0] /= pipelines * s.Micro
		return shapes.Make(whole.DType(), dims...)
	}
	blocks, err := pipeline.Measure(ctx, backend, 0, recipe, part(inputs), part(targets))
	if err != nil {
		return nil, err
	}
	var costs []float64
	for _, b := range blocks {
		costs = append(costs, (b.Forward + b.InputGrad + b.WeightGrad).Seconds())
	}
	return pipeline.Balance(costs, nil, math.Inf(1), len(s.Blocks))
}

func (e pipeEngine) Join(ctx context.Context, g group.Group, device int) (rank, error) {
	r, err := pipeline.Join(ctx, g, e.backend, device, e.recipe, e.options)
	if err != nil {
		return nil, err
	}
	memory, err := e.memory(g.Rank())
	return planRank{r, memory}, err
}

// Close has nothing to do: ranks have programs of their own.
func (e pipeEngine) Close() {}

// memory is what a rank holds between the passes: of the weights as many versions as there can be.
func (e pipeEngine) memory(at int) (map[string]int64, error) {
	model, err := chain.Of(e.recipe.Model)
	if err != nil {
		return nil, err
	}
	kept, err := e.plan.KeptVersions()
	if err != nil {
		return nil, err
	}
	versions, all, policy := 1, model.Blocks, e.recipe.Policy()
	for _, n := range kept[at] {
		versions = max(versions, n)
	}
	model.Blocks = nil
	for _, b := range e.plan.On(at) {
		model.Blocks = append(model.Blocks, all[b])
	}
	tree := model.Params().As(policy.Params)
	return map[string]int64{"parameters": int64(versions) * tree.Bytes(), "optimizer": optim.States(e.recipe.Rule, tree).Bytes(),
		"gradients": model.Params().As(policy.Reduce).Bytes()}, nil
}
