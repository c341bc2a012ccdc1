package parallel_test

import (
	"fmt"
	"testing"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
)

// unitBound is by how many units in the last place of the largest parameter a run may differ from one device's: sums
// are made in another order.
const unitBound = 4

// near checks that a run's parameters are one device's within the bound.
func near(t *testing.T, name string, got, want traintest.Named, bound float64) {
	t.Helper()
	off := traintest.Apart(t, got, want)
	t.Logf("%s: %g units apart", name, off)
	if !(off <= bound) {
		t.Errorf("%s: %g units apart, want at most %g", name, off, bound)
	}
}

// TestModels trains a model that is no GPT, with a parameter that nothing uses, a scalar, and one that the first block
// and the last have in common or not: the parameters of one device.
func TestModels(t *testing.T) {
	const rows, until = 16, 3
	for tied, layouts := range map[bool][]parallel.Layout{
		false: {
			{Pipe: 2, Data: 2, ZeRO: 1},
			{Replicas: 2, Pipe: 2, Data: 2, ZeRO: 3, Schedule: pipeline.KindZBH1},
			{Pipe: 4, Data: 2, ZeRO: 2, Recompute: true},
		},
		true: {
			{Pipe: 2, Data: 2},
			{Pipe: 2, Data: 4, ZeRO: 3, Schedule: pipeline.KindZBV, Recompute: true},
			{Replicas: 2, Pipe: 2, Data: 2, ZeRO: 2, Cut: []int{1, 3}},
			{Replicas: 4, Pipe: 2, Microbatches: 4, Schedule: pipeline.KindDualPipe},
			{Pipe: 2, Data: 3, ZeRO: 1, Microbatches: 1}, // no power of two
		},
	} {
		r := train.Recipe{Model: toy.Layers(4, tied), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Clip: 0.1}
		for _, l := range layouts {
			rows := rows
			if l.Data == 3 {
				rows = 6
			}
			want, metrics := traintest.Alone(t, devices(), r, until, toy.Batches(rows))
			if metrics[0].GradNorm < 2*r.Clip {
				t.Errorf("the norm is %g, and nothing is clipped", metrics[0].GradNorm)
			}
			run := start(t, r, l)
			steps(t, run, until, toy.Batches(rows))
			near(t, fmt.Sprintf("%+v", l), paramsOf(t, run), want, unitBound)
			if err := run.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWhole trains a model that is no chain of blocks.
func TestWhole(t *testing.T) {
	r := train.Recipe{Model: traintest.Whole{Model: toy.Model(false)},
		Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
	want, _ := traintest.Alone(t, devices(), r, 3, toy.Batches(8))
	for _, l := range []parallel.Layout{{Data: 2, ZeRO: 3}, {Replicas: 2, Data: 2, ZeRO: 1, Recompute: true}} {
		run := start(t, r, l)
		steps(t, run, 3, toy.Batches(8))
		near(t, fmt.Sprintf("%+v", l), paramsOf(t, run), want, unitBound)
	}
}

// TestNoise trains with dropout, whose noise is that of the rows and of the devices wherever they are.
func TestNoise(t *testing.T) {
	const rows, until = 8, 3
	c := small(1)
	c.Dropout, c.Tied = 0.1, true
	r := train.Recipe{Model: c, Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Seed: 7}
	want, _ := traintest.Alone(t, devices(), r, until, texts(rows))
	quiet := r
	quiet.Model = func() gpt.Config { c := c; c.Dropout = 0; return c }()
	still, _ := traintest.Alone(t, devices(), quiet, until, texts(rows))
	if off := traintest.Apart(t, still, want); off < 1000 {
		t.Errorf("dropout changes parameters by %g units alone", off)
	}
	for _, l := range []parallel.Layout{
		{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 2, Schedule: pipeline.KindZBH1},
		{Replicas: 2, Pipe: 2, Tensor: 2, TensorSequence: true, Recompute: true},
	} {
		run := start(t, r, l)
		steps(t, run, until, texts(rows))
		near(t, fmt.Sprintf("%+v", l), paramsOf(t, run), want, 2*unitBound)
	}
}
