package main

import (
	"context"
	"math"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// carryOut starts the ranks of the plan: all of them, or with MPI the one of this process. With inside they are one
// program.
func (r *ranks) carryOut(inside bool) error {
	l := r.plan.Layout()
	o := parallel.Options{Timeout: mpijob.Patience, Trace: r.recorder, Link: r.link,
		Apart: l.Pipe > 1 && l.PerRank() == 1}
	return r.join(1, func(ctx context.Context, _ int) (rank, error) {
		var run train.Trainer
		var err error
		if r.mpi == nil {
			run, err = r.plan.Start(ctx, r.backend, o)
		} else {
			run, err = r.plan.Join(ctx, r.mpi.Group, r.backend, 0, o)
		}
		return trainer{run, r, inside}, err
	})
}

// trainer runs all ranks of this process. With inside they are one program, which knows its own memory.
type trainer struct {
	train.Trainer
	of     *ranks
	inside bool
}

func (t trainer) Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := t.Trainer.Step(ctx, inputs, targets)
	bytes := t.of.peak()
	if t.inside {
		bytes = 0
		for _, n := range t.Trainer.Memory() {
			bytes += n
		}
	}
	return metrics{Metrics: m, Bytes: bytes}, err
}

// Memory is the peak of a device, and the bytes that it holds between the passes, by kind: the largest of all ranks.
func (t trainer) Memory() (map[string]int64, error) {
	most := map[string]int64{"peak": t.of.peak()}
	if t.inside {
		for kind, n := range t.Trainer.Memory() {
			most[string(kind)] = n
		}
		return most, nil
	}
	for rank := range t.of.plan.Layout().Ranks() {
		own, err := t.of.plan.Bytes(rank)
		if err != nil {
			return nil, err
		}
		for kind, n := range own {
			most[string(kind)] = max(most[string(kind)], n)
		}
	}
	return most, nil
}

// sentByAxis is the most bytes that a rank of a plan sent along each axis in the last step; nil for other runs. With
// MPI it is a collective call.
func (t *training) sentByAxis() (map[string]int64, error) {
	if t.run.plan == nil || len(t.records) == 0 {
		return nil, nil
	}
	own, err := t.run.ranks[0].(trainer).Traffic()
	if err != nil {
		return nil, err
	}
	return t.mpi.Most(own)
}

// traffic is the bytes that a device sends in a step by ring algorithms: (N−1)/N of what N devices gather or scatter,
// and twice that of what they all-reduce. Reductions within an update are not counted.
type traffic struct {
	Gather  int64 `json:"gather"`            // parameters
	Scatter int64 `json:"scatter"`           // gradients, to shards
	Average int64 `json:"average,omitempty"` // shards of gradients, between the copies of the state of hybrid sharding
}

// shardTraffic is what each device of a plan sends for ZeRO in a step; nil without ZeRO, and where devices differ.
func shardTraffic(plan *parallel.Plan) (*traffic, error) {
	if l := plan.Layout(); l.ZeRO == 0 || l.Pipe*l.Ring*l.Ulysses*l.Tensor > 1 {
		return nil, nil
	}
	sizes, err := plan.Sizes()
	if err != nil {
		return nil, err
	}
	t, p := &traffic{}, plan.Step()
	for _, op := range p.Ranks[0] {
		a, _ := p.Axis(op.Axis)
		n := int64(a.Size)
		switch {
		case op.Kind == step.Gather:
			t.Gather += sizes.Full[op.Unit] * (n - 1) / n
		case op.Kind == step.Reduce && op.Axis == p.Units[op.Unit].Shard:
			t.Scatter += sizes.Sum[op.Unit] * (n - 1) / n
		case op.Kind == step.Reduce:
			t.Average += 2 * sizes.Reduced[op.Unit] * (n - 1) / n
		}
	}
	return t, nil
}

// planOn is the plan of a job in a layout, whose stages it measures if the job asks for that. With MPI it is a
// collective call.
func planOn(ctx context.Context, backend *xla.Backend, j *job.Job, l parallel.Layout, recipe train.Recipe,
	batch batchFunc, mpi *mpijob.Job) (plan *parallel.Plan, err error) {
	if j.Parallel.Cut == job.CutMeasured {
		if l.Cut, err = measuredCut(ctx, backend, recipe, l, batch, mpi); err != nil {
			return nil, err
		}
	}
	return j.Plan(recipe, l)
}

// measuredCut cuts the model into stages that take about equally long, by timing each block on device 0. With MPI it is
// a collective call.
func measuredCut(ctx context.Context, backend *xla.Backend, recipe train.Recipe, l parallel.Layout, batch batchFunc,
	mpi *mpijob.Job) ([]int, error) {
	inputs, targets, err := batch(0)
	if err != nil {
		return nil, err
	}
	if m, ok := recipe.Model.(gpt.Parallel); ok {
		recipe.Model = m.Config
	}
	part := func(batch *tensors.Tensor) shapes.Shape {
		dims := slices.Clone(batch.Shape().Dimensions)
		dims[0] /= max(1, l.Replicas) * max(1, l.Data) * l.Plan.Micro
		return shapes.Make(batch.DType(), dims...)
	}
	blocks, err := pipeline.Measure(ctx, backend, 0, recipe, part(inputs), part(targets))
	if err != nil {
		return nil, err
	}
	var costs []float64
	for _, b := range blocks {
		costs = append(costs, (b.Forward + b.InputGrad + b.WeightGrad).Seconds())
	}
	cut, err := pipeline.Balance(costs, nil, math.Inf(1), len(l.Plan.Blocks))
	if err != nil {
		return nil, err
	}
	all, err := mpijob.Exchange(mpi, cut)
	if err != nil {
		return nil, err
	}
	return all[0], nil // each process has measured different times
}
