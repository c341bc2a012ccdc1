package train_test

import (
	"context"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
)

// even is a small GPT-2: 2, 3, 4 and 8 devices divide its heads, hidden width and tokens, but not its vocabulary.
var even = gpt.Config{Layers: 1, Width: 48, Heads: 24, Hidden: 48, Seq: 24, Vocab: 61}

// odd is a small Llama with fewer key heads than devices. No number of devices divides its tokens or its vocabulary.
var odd = gpt.Config{Layers: 2, Width: 32, Heads: 8, KVHeads: 2, Hidden: 24, Seq: 23, Vocab: 53,
	Gated: true, Norm: gpt.RMSNorm, Positions: gpt.Rotary, Tied: true, NoBias: true}

// Training with any parallelism equals training on one device.
func TestSharedEqualsOneDevice(t *testing.T) {
	const zigzag = sequence.Zigzag
	runs := hold(t, train.Recipe{Model: even, Optimizer: optim.AdamW(3e-3)}, inFloat32,
		way{data: 1, ring: 1, ulysses: 1, tensor: 1, sequence: true, overlap: true, placement: zigzag},
		way{tensor: 2},
		way{tensor: 8, sequence: true},
		way{tensor: 4, sequence: true, overlap: true},
		way{ring: 3},
		way{ulysses: 8},
		way{ring: 2, ulysses: 3, placement: zigzag},
		way{data: 2, ring: 2, tensor: 2, sequence: true, placement: zigzag},
	)
	// Groups of one device do nothing: every bit is the same.
	want := state(t, runs[0])
	for i, v := range state(t, runs[1]) {
		if !v.Equal(want[i]) {
			t.Errorf("on a mesh with axes of one device entry %d of the state differs", i)
		}
	}
}

// The same with Llama's options, key heads on several devices, padding wherever possible, and gradient clipping.
func TestSharedEqualsOneDeviceOdd(t *testing.T) {
	ways := []way{
		{tensor: 4},
		{ring: 2, placement: sequence.Zigzag, gather: true},
		{ring: 3, placement: sequence.Striped},
		{data: 2, ring: 2, ulysses: 2, placement: sequence.Zigzag},
		{data: 2, ring: 2, tensor: 2, sequence: true, overlap: true, placement: sequence.Zigzag},
	}
	recipe := train.Recipe{Model: odd, Optimizer: optim.AdamW(3e-3), Clip: 0.1}
	runs := hold(t, recipe, inFloat32, ways...)

	// The other runs continue from a checkpoint of one of them, since it has the full state. With the same layout every
	// bit is the same.
	saved, ctx := runs[1], context.Background()
	path := must.Get(saved.Save(ctx, t.TempDir(), nil, 1))(t)
	c := must.Get(checkpoint.Open(path))(t)
	want := trainTo(t, saved, odd, 23)
	end := state(t, saved)
	for i, run := range runs[:4] {
		must.Do(t, run.Load(ctx, c))
		got := trainTo(t, run, odd, 23)
		for step := range got {
			if !(apart(got[step].Loss, want[step].Loss) <= inFloat32.losses) {
				t.Errorf("run %d: step %d: loss %v, and %v in the run that was saved", i, 20+step, got[step].Loss,
					want[step].Loss)
			}
		}
		if i == 1 && !slices.Equal(got, want) {
			t.Errorf("%v after it was loaded, %v before", got, want)
		}
		for k, v := range state(t, run) {
			if i == 1 && !v.Equal(end[k]) {
				t.Errorf("entry %d of the state is not what it was before it was loaded", k)
			}
		}
	}
}

// Devices drop the same values as one device, recompute what it saves, and share a single key head.
func TestSharedOptionsEqualOneDevice(t *testing.T) {
	rule := optim.AdamW(3e-3)
	t.Run("dropout", func(t *testing.T) {
		c := even
		c.KVHeads, c.Dropout = 2, 0.2
		hold(t, train.Recipe{Model: c, Optimizer: rule, Seed: 7}, inFloat32, way{data: 2, tensor: 4, sequence: true})
	})
	t.Run("recompute", func(t *testing.T) {
		c := even
		c.Recompute, c.Flash, c.KVHeads = recompute.Block, true, 1
		hold(t, train.Recipe{Model: c, Optimizer: rule}, inFloat32,
			way{tensor: 3, sequence: true}, way{ring: 2, placement: sequence.Zigzag})
	})
}

// In half precision a device rounds its part of a sum, and one device the full sum: gradients differ by a few units in
// the last place of the largest, which is 2⁻⁸ of it in bfloat16 (2.3 units were measured) and 2⁻¹¹ in float16, and
// losses by the effect of that in 20 steps (0.001 and 0.00005 were measured).
func TestSharedHalfPrecision(t *testing.T) {
	t.Run("bf16", func(t *testing.T) {
		hold(t, train.Recipe{Model: even, Optimizer: optim.AdamW(3e-3), Precision: policy(t, "bf16")},
			bounds{losses: 1e-2, gradients: 0x1p-5},
			way{ring: 2, tensor: 2, sequence: true, placement: sequence.Zigzag})
	})
	// The first scales are too large, and the devices skip the same steps as one device. (With sequence parallelism
	// they may skip others: each device has the mean over its own tokens, whose gradients are larger.)
	t.Run("fp16", func(t *testing.T) {
		r := train.Recipe{Model: even, Optimizer: optim.AdamW(3e-3), Precision: policy(t, "fp16"), Clip: 0.1}
		r.Precision.Scaling.Initial = 0x1p26
		runs := hold(t, r, bounds{losses: 1e-3, gradients: 0x1p-8}, way{tensor: 4, sequence: true})
		if n := state(t, runs[0])[r.State().Index("train.updates")].Value().(int32); n < 10 || n > 19 {
			t.Errorf("%d updates in 20 steps: some are to be left out, and some not", n)
		}
	})
}
