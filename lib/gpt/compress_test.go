package gpt_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/recompute"
)

// The loss is the same bits whatever the codec, since the forward pass is exact; lossless codecs leave all gradients as
// they are, and lossy ones change them, but not much. All of it holds with recomputation.
func TestCompress(t *testing.T) {
	random := rand.New(rand.NewPCG(41, 42))
	for name, c := range map[string]gpt.Config{
		"GELU":         {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Dropout: 0.2},
		"SwiGLU":       {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Gated: true, Norm: gpt.RMSNorm, Positions: gpt.Rotary, NoBias: true},
		"ReLU":         {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU},
		"gated ReLU":   {Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU, Gated: true},
		"sparse alone": {Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU, CompressReLU: "csr:1"},
	} {
		w, _ := randomModel(c, random)
		args := append(w, tensors.FromValue(randomTokens(random, 2, c.Seq, c.Vocab)), tensors.FromValue(randomTokens(random, 2, c.Seq, c.Vocab)),
			tensors.FromScalar(uint32(7)))
		run := func(c gpt.Config) (all []float32) {
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			out, err := devicetest.CallOn(devicetest.WithBarriers(), gradients(c), args...)
			if err != nil {
				t.Fatalf("%s, %q, %q, %q: %v", name, c.Compress, c.CompressReLU, c.Recompute, err)
			}
			for _, o := range out {
				all = append(all, tensors.MustCopyFlatData[float32](o)...)
			}
			return all
		}
		plain := c
		plain.CompressReLU = ""
		want := run(plain)
		last := len(want) - 1
		for _, codec := range []string{"", "dense", "bf16", "int8"} {
			for _, policy := range []recompute.Policy{recompute.None, recompute.Block, "ops:act", "ops:norm1,scores,up"} {
				with := c
				with.Compress, with.Recompute = codec, policy
				if c.Activation == gpt.ReLU && codec == "dense" {
					with.CompressReLU = "csr:1"
				}
				got := run(with)
				if math.Float32bits(got[last]) != math.Float32bits(want[last]) {
					t.Errorf("%s, %q, %q: the loss is %v, without codec %v", name, codec, policy, got[last], want[last])
				}
				lossy := codec == "bf16" || codec == "int8"
				if same := slices.Equal(got, want); same == lossy {
					t.Errorf("%s, %q, %q: the gradients are the same: %v", name, codec, policy, same)
				}
				if off := distance(got, want); off > 0.02 { // int8 keeps 1 part in 254 of the largest of a group
					t.Errorf("%s, %q, %q: the gradients are off by %v of their norm", name, codec, policy, off)
				}
			}
		}
	}
}

// distance is the norm of the difference over the norm.
func distance(got, want []float32) float64 {
	var off, all float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		off += d * d
		all += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(off / all)
}
