package pipeline_test

import (
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// forms are pipelines of models of three blocks: of which one rank has both ends or several, with whole backward passes and
// with halves.
func forms(t *testing.T, m int) (all []pipeline.Options) {
	t.Helper()
	return []pipeline.Options{
		{Schedule: newSchedule(t, schedule.Kind1F1B, 3, m, 0)},
		{Schedule: newSchedule(t, schedule.KindZBH2, 2, m, 0)},
		{Schedule: newSchedule(t, schedule.KindNaive, 1, m, 0), Recompute: true},
	}
}

// TestPrecision trains in each type, with master copies, loss scaling (the scale begins too high, so that the first step is left out
// on all ranks) and stochastic rounding, whose bits are those of the whole model: all forms have the same bits. In half types a
// parameter may be off from one device's by its own last place where sums are rounded another way, and then learn something else; how
// far is a share of the largest parameter.
func TestPrecision(t *testing.T) {
	const steps, m = 4, 4
	batches := toyBatches(m * microRows)
	for name, share := range map[string]float64{"bf16": 0.008, "fp16": 0.002, "bf16-pure": 0.008} {
		policy, err := precision.ParsePolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		policy.StochasticUpdate = name == "bf16-pure"
		if name == "fp16" {
			policy.Scaling.Initial, policy.Scaling.Backoff = 0x1p26, 0x1p-16
		}
		r := train.Recipe{Model: toy.Layers(3, true), Rule: optim.SGDRule{LR: 0.1, Momentum: 0.9}, Precision: policy}
		e, one := engineOf(t, name, r), alone(t, r, steps, batches)
		var first *result
		for _, o := range forms(t, m)[:2] {
			got := training{engine: e, options: o, steps: steps, batches: batches}.run(t)
			if first == nil {
				first = &got
			}
			same(t, name+", "+o.Schedule.Name, got, *first)
			for step, metrics := range got.metrics {
				alone, want := one.metrics[step], name == "fp16" && step == 0
				if metrics.Skipped != want || alone.Skipped != want {
					t.Errorf("%s, %s: step %d left out: %v, on one device: %v", name, o.Schedule.Name, step, metrics.Skipped, alone.Skipped)
				}
			}
		}
		off := first.apart(t, one) * 0x1p-23
		t.Logf("%s: %g of the largest parameter from one device", name, off)
		if !(off <= share) {
			t.Errorf("%s: %g of the largest parameter from one device, want at most %g", name, off, share)
		}
	}
}

// TestClipping: norms are those of all gradients, those that ranks have in common counted once. They are added up in the order of the
// ranks, and so the last bits depend on the form.
func TestClipping(t *testing.T) {
	const steps, m = 3, 4
	r := train.Recipe{Model: toy.Layers(3, true), Rule: optim.SGDRule{LR: 0.5, Momentum: 0.9}, Clip: 0.05}
	batches := toyBatches(m * microRows)
	e, one := engineOf(t, "clipping", r), alone(t, r, steps, batches)
	if one.metrics[0].GradNorm < 2*r.Clip {
		t.Errorf("the norm is %g, and nothing is clipped", one.metrics[0].GradNorm)
	}
	for _, o := range append(forms(t, m), pipeline.Options{Schedule: newSchedule(t, schedule.KindGPipe, 2, m/2, 0), Replicas: 2}) {
		got := training{engine: e, options: o, steps: steps, batches: batches}.run(t)
		near(t, o.Schedule.Name, got, one)
		for step := range steps {
			if d := got.metrics[step].GradNorm/one.metrics[step].GradNorm - 1; !(d < 1e-6 && d > -1e-6) {
				t.Errorf("%s: the norm of step %d is %g, want %g", o.Schedule.Name, step, got.metrics[step].GradNorm, one.metrics[step].GradNorm)
			}
		}
	}
}

// TestGPT trains a GPT whose head has the token table of the embedding, with dropout: its noise is that of the rows wherever they are.
func TestGPT(t *testing.T) {
	const steps, m = 3, 4
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 11, Tied: true, Dropout: 0.3}
	batches := func(step int) (*tensors.Tensor, *tensors.Tensor) {
		inputs := make([]int32, m*microRows*c.Seq)
		for i := range inputs {
			inputs[i] = int32((7*i*i + 3*step) % c.Vocab)
		}
		return tensors.FromFlatDataAndDimensions(inputs, m*microRows, c.Seq),
			tensors.FromFlatDataAndDimensions(append(inputs[1:], 0), m*microRows, c.Seq)
	}
	r := train.Recipe{Model: c, Rule: optim.SGDRule{LR: 0.5, Momentum: 0.9}, Seed: 7}
	e, one := engineOf(t, "GPT", r), alone(t, r, steps, batches)
	of := func(o pipeline.Options) result {
		return training{engine: e, options: o, steps: steps, batches: batches}.run(t)
	}
	all := forms(t, m)
	first := of(all[0])
	for _, o := range all[1:] {
		same(t, o.Schedule.Name, of(o), first)
	}
	near(t, "one device", first, one)
	near(t, "two pipelines", of(pipeline.Options{Schedule: newSchedule(t, schedule.KindZBH1, 3, m/2, 0), Replicas: 2}), one)
}
