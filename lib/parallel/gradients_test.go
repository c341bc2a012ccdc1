package parallel_test

import (
	"context"
	"math"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
)

// TestGradients trains with gradients that are reduced in each way, in layouts of several techniques: as one device
// does, but for rounding, and local SGD as ranks of one device each do it.
func TestGradients(t *testing.T) {
	const steps, rows = 4, 16
	mean := toy.Layers(5, false)
	sum := mean
	sum.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllSum(graph.Square(graph.Sub(y, targets)))
	}
	recipe := train.Recipe{Model: mean, Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}}
	sums := train.Recipe{Model: sum, Optimizer: optim.SGD(1e-3)}
	learn := func(run train.Trainer) (got traintest.Named, loss float64) {
		for i := range steps {
			in, out := toy.Batch(i, rows)
			m, err := run.Step(t.Context(), in, out)
			must.Do(t, err)
			loss = m.Loss
		}
		got, err := run.Params(context.Background())
		must.Do(t, err)
		must.Do(t, run.Close())
		return got, loss
	}
	batch := func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, rows) }
	local, err := ddp.New(t.Context(), devices(), recipe, 2, ddp.Options{Every: 2})
	must.Do(t, err)
	apart, apartLoss := learn(local)
	for _, l := range []parallel.Layout{
		{Replicas: 2, Data: 2, Sync: ddp.Bucketed, BucketBytes: 200}, {Replicas: 2, Pipe: 2, Sync: ddp.Naive,
			Microbatches: 4},
		{Replicas: 2, Pipe: 2, EachMicroBatch: true, Schedule: "zb-h1"}, {Replicas: 2, Pipe: 2, Data: 2,
			Sync:      ddp.Overlap,
			Recompute: true},
		{Replicas: 4, Pipe: 2, Hook: ddp.BF16(), Sync: ddp.Bucketed}, {Replicas: 2, Data: 2,
			Hook: ddp.ByPlan(plan.Ring)},
		{Replicas: 2, Pipe: 2, Data: 2, SumLoss: true}, {Data: 4, SumLoss: true, EachMicroBatch: true, Microbatches: 2},
		{Replicas: 2, Data: 2, Every: 2}, {Replicas: 2, Pipe: 2, Every: 2, Microbatches: 4},
		{Replicas: 2, Every: 2, Offload: offload.Host{Update: true}}, {Replicas: 2, Sync: ddp.Bucketed,
			Offload: offload.Host{Update: true, Prefetch: 1}},
		{Replicas: 4, Pipe: 2, Hook: ddp.FP8(), Offload: offload.Host{Optimizer: true}},
	} {
		r, bound := recipe, 64.0
		if l.SumLoss {
			r = sums
		}
		want, metrics := traintest.Alone(t, devices(), r, steps, batch)
		loss := metrics[steps-1].Loss
		if l.Every > 1 {
			want, loss = apart, apartLoss
		}
		if l.Hook != nil {
			bound = 1 << 19 // of types of 8 and 16 bits
		}
		run, err := parallel.New(t.Context(), devices(), r, l, parallel.Options{})
		must.Do(t, err)
		got, last := learn(run)
		if off := traintest.Apart(t, want, got); !(off <= bound) || math.Abs(last/loss-1) > 1e-2 {
			t.Errorf("%+v: %g units apart, the last loss %g, want %g", l, off, last, loss)
		}
	}
	tied := train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(1)}
	_, err = parallel.NewPlan(tied, parallel.Layout{Replicas: 2, Pipe: 2, Every: 2})
	must.Refuse(t, "tied", err, "ranks of a pipeline have parameters in common")
	clipped := recipe
	clipped.Clip = 1
	_, err = parallel.NewPlan(clipped, parallel.Layout{Replicas: 2, Pipe: 2, Every: 2})
	must.Refuse(t, "clipped", err, "local SGD cannot clip gradients")
}
