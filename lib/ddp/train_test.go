package ddp_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// source gives the batch of a step.
type source func(step int) (inputs, targets *tensors.Tensor, err error)

func toySource(rows int) source {
	return func(step int) (*tensors.Tensor, *tensors.Tensor, error) {
		inputs, targets := toy.Batch(step, rows)
		return inputs, targets, nil
	}
}

func textSource(t *testing.T, c gpt.Config, rows int) source {
	t.Helper()
	batches := must.Get(gpt.Reference().Batches(c, rows))(t)
	return batches.Step
}

func start(t testing.TB, backend *xla.Backend, r train.Recipe, devices int, o ddp.Options) train.Trainer {
	t.Helper()
	run := must.Get(ddp.New(context.Background(), backend, r, devices, o))(t)
	return run
}

// stepper is what makes steps.
type stepper interface {
	Steps() int
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error)
}

// learn makes steps, and returns what each reported.
func learn(t testing.TB, run stepper, steps int, batches source) (all []train.Metrics) {
	t.Helper()
	for range steps {
		inputs, targets, err := batches(run.Steps())
		must.Do(t, err)
		m := must.Get(run.Step(context.Background(), inputs, targets))(t)
		all = append(all, m)
	}
	return all
}

func ended(t testing.TB, run train.Trainer) traintest.Named {
	t.Helper()
	named := must.Get(run.Params(context.Background()))(t)
	must.Do(t, run.Close())
	return named
}

// plain is the all-reduce as a hook.
type plain struct{}

func (plain) Reduce(ctx context.Context, g group.Group, grads ddp.Gradients) error {
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	return group.AllReduce(ctx, g, values, group.Sum)
}

// forms are the ways to train, by the micro-batches of a rank: those of one list add gradients up in the same order.
// Small buckets cut the toy's gradients so that those of a block lie in several.
var forms = map[int]map[string]ddp.Options{
	1: {"naive": {Sync: ddp.Naive}, "overlap": {Sync: ddp.Overlap}, "one bucket": {}, "buckets": {BucketBytes: 160},
		"recomputing": {BucketBytes: 160, Recompute: true}, "hook": {BucketBytes: 160,
			Hook: func() ddp.Hook { return plain{} }}},
	2: {"naive": {Sync: ddp.Naive}, "buckets": {BucketBytes: 160}, "recomputing": {Recompute: true}},
	3: {"each": {BucketBytes: 160, EachMicroBatch: true}, "each, naive": {Sync: ddp.Naive, EachMicroBatch: true}},
}

// TestForms trains in all forms: within rounding of one device with the full batches, with the same bits in every form.
// A rank sends and holds exactly the gradients of the parameters that the loss depends on, for each micro-batch if
// these are reduced. Losses are those of the full batches.
func TestForms(t *testing.T) {
	const steps, rows = 4, 12
	backend := devicetest.Open(t, 8)
	batches := toySource(rows)
	recipes := map[string]train.Recipe{
		"momentum": {Model: toy.Layers(3, false), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}},
		"tied":     {Model: toy.Model(true), Optimizer: optim.AdamW(1e-2), Clip: 0.1},
		"whole":    {Model: traintest.Whole{Model: toy.Model(false)}, Optimizer: optim.SGD(0.1)},
		"buffers":  {Model: toy.Buffered(2), Optimizer: optim.SGD(0.1)},
	}
	for name, r := range recipes {
		want, metrics := traintest.Alone(t, backend, r, steps, func(i int) (*tensors.Tensor, *tensors.Tensor) {
			return toy.Batch(i, rows)
		})
		gradients := r.Model.Params().Bytes() - 5*4 // of which the loss does not depend on five
		for _, world := range []int{2, 3} {
			for micro, list := range forms {
				if name != "tied" && world == 3 && micro == 2 || rows%(world*min(micro, 2)) != 0 {
					continue // other recipes show as much
				}
				var first traintest.Named
				for form, o := range list {
					what := fmt.Sprintf("%s, %d ranks, %s with %d micro-batches", name, world, form, micro)
					o.Accumulate = min(micro, 2)
					run := start(t, backend, r, world, o)
					for i, m := range learn(t, run, steps, batches) {
						if math.Abs(m.Loss/metrics[i].Loss-1) > 1e-5 ||
							math.Abs(m.GradNorm-metrics[i].GradNorm) > 1e-4*metrics[i].GradNorm {
							t.Errorf("%s, step %d: %+v, one device has %+v", what, i, m, metrics[i])
						}
					}
					sent := must.Get(run.Traffic())(t)
					times := int64(1)
					if o.EachMicroBatch {
						times = 2
					}
					if want := map[string]int64{ddp.BetweenRanks: times * gradients}; !maps.Equal(sent, want) {
						t.Errorf("%s: a rank sends %v bytes, want %v", what, sent, want)
					}
					if held := run.Memory()[memest.Gradients]; !o.EachMicroBatch && held != gradients {
						t.Errorf("%s: a rank holds %d bytes of gradients, want %d", what, held, gradients)
					}
					got := ended(t, run)
					if off := traintest.Apart(t, want, got); !(off <= 64) {
						t.Errorf("%s: %g units from one device", what, off)
					}
					if first == nil {
						first = got
					}
					if other := traintest.Differ(first, got); other != "" {
						t.Errorf("%s: %s has other bits than in another form", what, other)
					}
				}
			}
		}
	}
}

// TestAccumulation has one rank train on the micro-batches that several ranks have of a batch, in the programs of
// ranks: the gradients are added up in the same order, and the bits are the same.
func TestAccumulation(t *testing.T) {
	const steps, each = 5, 2
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(3, false), Optimizer: optim.AdamW(1e-2)}
	for _, world := range []int{2, 4, 5, 8} {
		batches := toySource(each * world)
		run := start(t, backend, r, 1, ddp.Options{Accumulate: world})
		learn(t, run, steps, batches)
		want := ended(t, run)
		run = start(t, backend, r, world, ddp.Options{BucketBytes: 160})
		learn(t, run, steps, batches)
		traintest.Agree(t, fmt.Sprint(world, " ranks"), want, ended(t, run), 8)
	}
}

// TestRules trains by each of the optimizers.
func TestRules(t *testing.T) {
	backend := devicetest.Open(t, 8)
	for _, name := range optim.Names() {
		rule := must.Get(optim.Parse(name, 0.01))(t)
		r := train.Recipe{Model: toy.Layers(2, false), Optimizer: rule}
		want, _ := traintest.Alone(t, backend, r, 3, func(i int) (*tensors.Tensor, *tensors.Tensor) {
			return toy.Batch(i, 8)
		})
		run := start(t, backend, r, 2, ddp.Options{})
		learn(t, run, 3, toySource(8))
		// a step is of the learning rate, whatever the gradient is
		if off := traintest.Apart(t, want, ended(t, run)); !(off <= 2048) {
			t.Errorf("%s: %g units from one device", name, off)
		}
	}
}

// TestPrecisions trains in half types, with a master copy and without, with loss scaling that begins too high and
// without: ranks learn as one program that has two devices, and after each step that they leave out the scale is lower.
// (Ranks add up means where the program makes a mean of sums: of half types these overflow sooner.)
func TestPrecisions(t *testing.T) {
	const steps = 24
	backend := devicetest.Open(t, 2)
	mesh := must.Get(backend.Mesh(xla.Axis(train.Axis, 2)))(t)
	for _, name := range []string{"bf16", "fp16", "bf16-pure", "fp16-pure"} {
		policy := must.Get(precision.ParsePolicy(name))(t)
		scaled := policy.Scaling != precision.Scaling{}
		if scaled {
			policy.Scaling.Initial = 1 << 22
		}
		recipe := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1), Precision: policy, Clip: 1}
		run := start(t, backend, recipe, 2, ddp.Options{})
		got := learn(t, run, steps, toySource(4))
		must.Do(t, run.Close())
		one := must.Get(ddp.NewSPMD(mesh, recipe))(t)
		skipped, scale := 0, 0.0
		for i, m := range got {
			inputs, targets := toy.Batch(i, 4)
			want := must.Get(one.Step(inputs, targets))(t)
			if m.Skipped {
				skipped++
			}
			if i > 0 && m.Scale != scale {
				t.Errorf("%s, step %d: the scale is %g, want %g", name, i, m.Scale, scale)
			}
			if scale = m.Scale; m.Skipped {
				scale *= policy.Scaling.Backoff
			}
			if i == 0 && m.Skipped != want.Skipped || !scaled && math.Abs(m.Loss/want.Loss-1) > 0.01 {
				t.Errorf("%s, step %d: %+v, in one program %+v", name, i, m, want)
			}
		}
		if scaled != (skipped > 0) || skipped > steps/2 || !(got[steps-1].Loss < got[0].Loss) {
			t.Errorf("%s: %d of %d steps were left out, losses %g and %g", name, skipped, steps, got[0].Loss,
				got[steps-1].Loss)
		}
	}
}

// TestSumLoss trains on a loss that is a sum over the examples: with SumLoss gradients are summed, as on one device.
// Without it they are a mean of sums, which equals a smaller learning rate.
func TestSumLoss(t *testing.T) {
	const world, rows = 4, 8
	backend := devicetest.Open(t, world)
	m := toy.Layers(2, false)
	m.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllSum(graph.Square(graph.Sub(y, targets)))
	}
	recipe := func(rate float64) train.Recipe { return train.Recipe{Model: m, Optimizer: optim.SGD(rate)} }
	want, metrics := traintest.Alone(t, backend, recipe(0.01), 5, func(i int) (*tensors.Tensor, *tensors.Tensor) {
		return toy.Batch(i, rows)
	})
	for name, c := range map[string]struct {
		rate, loss float64
		o          ddp.Options
	}{
		"sum":                    {0.01, 1, ddp.Options{SumLoss: true}},
		"sum of micro-batches":   {0.01, 1, ddp.Options{SumLoss: true, Accumulate: 2}},
		"each micro-batch":       {0.01, 1, ddp.Options{SumLoss: true, Accumulate: 2, EachMicroBatch: true}},
		"the mistake, made good": {0.01 * world, 1. / world, ddp.Options{}},
		"the mistake":            {0.01, 1. / world, ddp.Options{}},
	} {
		run := start(t, backend, recipe(c.rate), world, c.o)
		got := learn(t, run, 5, toySource(rows))
		off := traintest.Apart(t, want, ended(t, run))
		if mistake := name == "the mistake"; mistake != (off > 1e3) || !mistake && !(off <= 8) {
			t.Errorf("%s: %g units from one device", name, off)
		}
		if loss := c.loss * metrics[0].Loss; math.Abs(got[0].Loss/loss-1) > 1e-5 {
			t.Errorf("%s: loss %v, want %v", name, got[0].Loss, loss)
		}
	}
}

// TestLocalSGD has each rank clip only its own gradients: with one rank's examples a hundred times as large the others
// train as by themselves, until the states are averaged. A rank sends its state in each second step, and nothing else.
func TestLocalSGD(t *testing.T) {
	const world, rows = 2, 4
	backend := devicetest.Open(t, world)
	m := toy.Layers(3, false)
	r := train.Recipe{Model: m, Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}, Clip: 0.1}
	batch := func(i int) (*tensors.Tensor, *tensors.Tensor) {
		inputs, targets := toy.Batch(i, rows*world)
		must.Do(t, tensors.MutableFlatData(targets, func(flat []float32) {
			for k := range flat[len(flat)/2:] {
				flat[len(flat)/2+k] *= 100
			}
		}))
		return inputs, targets
	}
	var alone []traintest.Named
	for rank := range world {
		named, _ := traintest.Alone(t, backend, r, 2, func(i int) (*tensors.Tensor, *tensors.Tensor) {
			inputs, targets := batch(i)
			return rowsOf(inputs, rank*rows, rows), rowsOf(targets, rank*rows, rows)
		})
		alone = append(alone, named)
	}
	run := start(t, backend, r, world, ddp.Options{Every: 2})
	for i := range 2 {
		inputs, targets := batch(i)
		_, err := run.Step(context.Background(), inputs, targets)
		must.Do(t, err)
		sent := must.Get(run.Traffic())(t)
		if want := int64(i) * 2 * m.Params().Bytes(); sent[ddp.BetweenRanks] != want {
			t.Errorf("step %d: a rank sends %v bytes, want %d", i, sent, want)
		}
	}
	got := ended(t, run)
	for name, x := range alone[0] {
		a, b := tensors.MustCopyFlatData[float32](x), tensors.MustCopyFlatData[float32](alone[1][name])
		for k := range a {
			a[k] = (a[k] + b[k]) / 2
		}
		alone[0][name] = tensors.FromFlatDataAndDimensions(a, x.Shape().Dimensions...)
	}
	if off := traintest.Apart(t, alone[0], got); !(off <= 8) {
		t.Errorf("%g units from the mean of two devices", off)
	}
}

func rowsOf(x *tensors.Tensor, first, rows int) *tensors.Tensor {
	each := x.Shape().Dim(1)
	return tensors.FromFlatDataAndDimensions(tensors.MustCopyFlatData[float32](x)[first*each:(first+rows)*each], rows,
		each)
}

// TestResume saves in the middle, and resumes with the same bits: in other forms too, and in local SGD between two
// averages, where saving averages. A run that loads a checkpoint has a new hook.
func TestResume(t *testing.T) {
	const world, rows, at, end = 3, 6, 3, 6
	backend, ctx := devicetest.Open(t, world), context.Background()
	r := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
	for name, c := range map[string]struct{ from, to ddp.Options }{
		"another form": {ddp.Options{Sync: ddp.Naive}, ddp.Options{BucketBytes: 160}},
		"local SGD":    {ddp.Options{Every: 2}, ddp.Options{Every: 2}},
		"a hook":       {ddp.Options{Hook: ddp.TopK(0.1)}, ddp.Options{Hook: ddp.TopK(0.1)}},
	} {
		dir := t.TempDir()
		run := start(t, backend, r, world, c.from)
		learn(t, run, at, toySource(rows))
		must.Do(t, run.Save(ctx, dir, nil, 1))
		if c.from.Hook != nil { // what the hook has kept until then is in no checkpoint
			learn(t, run, 1, toySource(rows))
			must.Do(t, run.Load(ctx, traintest.Last(t, dir)))
		}
		learn(t, run, end-at, toySource(rows))
		want := ended(t, run)
		again := start(t, backend, r, world, c.to)
		must.Do(t, again.Load(ctx, traintest.Last(t, dir)))
		if again.Steps() != at {
			t.Errorf("%s: %d steps are loaded, want %d", name, again.Steps(), at)
		}
		learn(t, again, end-at, toySource(rows))
		if other := traintest.Differ(want, ended(t, again)); other != "" {
			t.Errorf("%s: %s has other bits where the run goes on from a checkpoint", name, other)
		}
	}
}

// TestHooksTrain trains with gradients compressed: losses fall, to not much more than those of an all-reduce.
func TestHooksTrain(t *testing.T) {
	const world, steps = 3, 60
	backend := devicetest.Open(t, world)
	end := func(hook func() ddp.Hook) (mean float64) {
		run := start(t, backend, train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}, world,
			ddp.Options{BucketBytes: 160, Hook: hook})
		defer run.Close()
		for i, m := range learn(t, run, steps, toySource(2*world)) {
			if i >= steps*2/3 {
				mean += m.Loss / (steps / 3)
			}
		}
		return mean
	}
	exact := end(nil)
	for _, test := range []struct {
		hook   func() ddp.Hook
		factor float64
	}{{ddp.BF16(), 1.05}, {ddp.FP8(), 1.05}, {ddp.TopK(0.25), 1.5}, {ddp.PowerSGD(1), 1.5}} {
		if got := end(test.hook); got > test.factor*exact {
			t.Errorf("%T: a loss of %.4f, and %.4f without", test.hook(), got, exact)
		}
	}
}

// TestFaults has a rank fail in its hook, and in the average of local SGD, in every way: the others learn whose fault
// it is.
func TestFaults(t *testing.T) {
	const world = 3
	backend := devicetest.Open(t, world)
	r := train.Recipe{Model: toy.Layers(3, false), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
	for name, o := range map[string]ddp.Options{"hook": {BucketBytes: 160, Hook: ddp.PowerSGD(1)},
		"local SGD": {Every: 2}, "naive": {Sync: ddp.Naive}} {
		leaks := devicetest.NoLeaks(t, backend)
		ranks := traintest.Ranks[train.Trainer]{Size: world, Folder: t.TempDir(),
			Batches: func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, 2*world) },
			Join: func(ctx context.Context, g group.Group) (train.Trainer, error) {
				return ddp.Join(ctx, g, backend, g.Rank(), r, o)
			}}
		t.Run(name, func(t *testing.T) {
			for n, fault := range traintest.Faults {
				ranks.Play(t, traintest.Case{At: []string{"first", "last", "middle", "before"}[n], Fault: fault,
					Victim: n % world})
			}
		})
		leaks()
	}
}
