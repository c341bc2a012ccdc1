package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// noReplicas is for a program on several devices.
type noReplicas struct{ train.Replicas }

// TestRefused lists what cannot be planned or begun, with what the error must say.
func TestRefused(t *testing.T) {
	toys := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(1)}
	replicated, whole := toys, toys
	replicated.Replicas = noReplicas{}
	whole.Model = traintest.Whole{Model: toys.Model}
	one := parallel.Layout{Tensor: 2}
	alone := train.Recipe{Model: gpt.Parallel{Config: small(2)}, Optimizer: optim.SGD(1)}
	other := train.Recipe{Model: gpt.Parallel{Config: small(2), Tensor: tensor.Group{Axis: "model"}},
		Optimizer: optim.SGD(1)}
	begin := func(b *xla.Backend, r train.Recipe, l parallel.Layout) error {
		run, err := parallel.New(context.Background(), b, r, l, parallel.Options{})
		if err == nil {
			err = run.Close()
		}
		return err
	}
	for name, c := range map[string]struct {
		recipe train.Recipe
		layout parallel.Layout
		want   string
	}{
		"no rule":            {train.Recipe{Model: toys.Model}, parallel.Layout{}, "the recipe has no model or no optimizer"},
		"a program's copies": {replicated, parallel.Layout{}, "Recipe.Replicas is set"},
		"no chain":           {whole, parallel.Layout{Pipe: 2}, "1 blocks cannot be 2 stages"},
		"shares nothing": {toys, parallel.Layout{Tensor: 2, Ring: 3},
			"does not say how devices shard it, and the layout has tensor=2, ring=3, ulysses=1"},
		"one device's GPT": {train.Recipe{Model: small(2), Optimizer: optim.SGD(1)}, one,
			"a gpt.Config does not say how devices shard it"},
		"no axis": {alone, one, "the layout has tensor=2, and the model shards nothing along it: use " +
			"Layout.TensorGroup, SequenceGroup and Experts"},
		"another axis": {other, one, `the model shards along the axis "model"`},
		"heads": {sharing(train.Recipe{Model: small(2), Optimizer: optim.SGD(1)}, parallel.Layout{Tensor: 3}, ""),
			parallel.Layout{Tensor: 3}, "3 ranks cannot share 8 query heads"},
		"more stages": {toys, parallel.Layout{Pipe: 5}, "4 blocks cannot be 5 stages"},
		"a short cut": {toys, parallel.Layout{Pipe: 2, Cut: []int{4}}, "the cut [4] has 1 stages, the schedule 2"},
		"too few blocks": {toys, parallel.Layout{Pipe: 2, Cut: []int{1, 2}},
			"the cut [1 2] is for 3 blocks, the model has 4"},
		"an empty stage": {toys, parallel.Layout{Pipe: 2, Cut: []int{4, 0}}, "the cut [4 0] gives stage 1 0 blocks"},
		"more devices": {toys, parallel.Layout{Pipe: 3, Data: 3},
			"the layout needs 9 devices, the backend has 8: open more with xla.Devices"},
	} {
		must.Refuse(t, name, begin(devices(), c.recipe, c.layout), c.want)
	}
	must.Refuse(t, "no backend", begin(nil, toys, parallel.Layout{}), "the backend is nil: open one with xla.Open")

	p, err := parallel.NewPlan(toys, parallel.Layout{Pipe: 2, Data: 2})
	must.Do(t, err)
	_, err = p.Bytes(2)
	must.Refuse(t, "no such rank", err, "rank 2 of 2")
	join := func(ranks int, b *xla.Backend, first int) error {
		return group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			r, err := p.Join(ctx, g, b, first, parallel.Options{})
			if err != nil {
				return err
			}
			return r.Close()
		}, group.Timeout(time.Minute))
	}
	must.Refuse(t, "a larger group", join(3, devices(), 0), "a group of 3 ranks for a layout of 2: make it 2")
	must.Refuse(t, "no backend to join on", join(2, nil, 0), "the backend is nil")
	must.Refuse(t, "no such device", join(2, devices(), 8), "a mesh from device 8 on")
	must.Refuse(t, "too few left", join(2, devices(), 7), "needs more than the backend's 1 devices from number 7 on")
}

// TestModelsRefused gives a run a model whose loss is no scalar, and one that refuses the batch: errors before a step
// begins, which lose no rank.
func TestModelsRefused(t *testing.T) {
	rows := toy.Model(false)
	rows.Criterion = func(y, targets *graph.Node) *graph.Node { return graph.Square(graph.Sub(y, targets)) }
	for want, m := range map[string]train.Model{
		"the loss has shape (Float32)[2, 3], want a float scalar": rows,
		"not this batch": toy.Picky(),
	} {
		run := start(t, train.Recipe{Model: m, Optimizer: optim.SGD(1)}, parallel.Layout{Pipe: 2, Data: 2})
		for range 2 {
			in, out := toy.Batch(0, 8)
			_, err := run.Step(t.Context(), in, out)
			must.Refuse(t, "a model", err, want)
		}
	}
}

// TestBatchesRefused gives a run batches that cannot be dealt out, after which it goes on as if they had not been.
func TestBatchesRefused(t *testing.T) {
	const rows = 8
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(0.5)}
	l := parallel.Layout{Replicas: 2, Pipe: 2, Data: 2}
	want, _ := traintest.Alone(t, devices(), r, 2, toy.Batches(rows))
	run := start(t, r, l)
	bad := func(at string) {
		t.Helper()
		inputs, targets := toy.Batch(0, rows)
		few, fewer := toy.Batch(0, 6)
		odd, odder := toy.Batch(0, 4)
		wide := tensors.FromScalarAndDimensions(float32(1), rows, 5)
		for _, c := range []struct {
			inputs, targets *tensors.Tensor
			want            string
		}{
			{few, fewer, "a batch of 6 examples for 4 data-parallel devices with 2 micro-batches each: make it a " +
				"multiple of 8"},
			{odd, odder, "a batch of 4 examples for 4 data-parallel devices"},
			{inputs, fewer, "6"},
			{wide, targets, `block "in", of an input of shape (Float32)[1, 5]`},
			{inputs, inputs, "the criterion: dimension of axis #1"}, // of another width than the outputs
		} {
			_, err := run.Step(context.Background(), c.inputs, c.targets)
			must.Refuse(t, at, err, c.want)
		}
	}
	bad("before a step")
	steps(t, run, 1, toy.Batches(rows))
	bad("after a step")
	steps(t, run, 2, toy.Batches(rows))
	near(t, "after batches that are refused", paramsOf(t, run), want, unitBound)
	if err := errors.Join(run.Close(), run.Close()); err != nil {
		t.Error(err)
	}
	inputs, targets := toy.Batch(0, rows)
	_, step := run.Step(context.Background(), inputs, targets)
	_, all := run.Params(context.Background())
	_, traffic := run.Traffic()
	for what, err := range map[string]error{"Step": step, "Params": all, "Traffic": traffic,
		"Save": run.Save(context.Background(), t.TempDir(), nil, 0), "Load": run.Load(context.Background(), nil)} {
		must.Refuse(t, fmt.Sprintf("%s of a closed run", what), err, "closed")
	}
}
