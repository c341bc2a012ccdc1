package main

import (
	"fmt"
	"math/bits"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
)

// gpuTraining is a training step to be measured: forward, loss, backward and AdamW.
type gpuTraining struct {
	gpt.Config
	Batch     int    `json:"batch"` // sequences
	Precision string `json:"precision"`

	name  string
	apart bool // its state and activations leave room for no other process on a GPU of 80 GB
}

// model is the model with a name, with the batch that is measured by default. llama has Llama's base of angles of 10000
// instead of 500000, which changes no time.
func (b *gpuBench) model(name string) (gpuTraining, error) {
	t := gpuTraining{Precision: b.precision}
	switch name {
	case "gpt2": // Radford et al. 2019, the smallest
		t.name, t.Batch = "GPT-2 124M", 16
		t.Config = gpt.Config{Layers: 12, Width: 768, Heads: 12, Seq: 1024, Vocab: 50257, Tied: true}
		if b.tiny {
			t.name, t.Batch = "GPT-2's shape", 4
			t.Config = gpt.Config{Layers: 2, Width: 64, Heads: 4, Seq: 64, Vocab: 193, Tied: true}
		}
	case "llama":
		t.name, t.Batch, t.apart = "Llama 3.2 1B", 6, true
		t.Config = gpt.Config{Layers: 16, Width: 2048, Heads: 32, KVHeads: 8, Hidden: 8192, Seq: 2048, Vocab: 128256}
		if b.tiny {
			t.name = "Llama's shape"
			t.Config = gpt.Config{Layers: 2, Width: 64, Heads: 4, KVHeads: 2, Hidden: 160, Seq: 64, Vocab: 257}
		}
		t.Gated, t.Norm, t.Positions, t.NoBias, t.Tied = true, gpt.RMSNorm, gpt.Rotary, true, true
	}
	t.Flash = true
	if b.batch != 0 {
		t.Batch = b.batch
	}
	if t.Batch < 1 || t.Batch > 1<<12 {
		return t, fmt.Errorf("--batch=%d: want 1 to %d sequences", t.Batch, 1<<12)
	}
	return t, t.Validate()
}

// billion is whether the model has about a billion parameters.
func (t gpuTraining) billion() bool { return t.Width >= 2048 }

func (t gpuTraining) String() string {
	return fmt.Sprintf("%s, %d×%d tokens, %s", t.name, t.Batch, t.Seq, t.Precision)
}

// tolerance is the error allowed of the first losses, in nats. In bfloat16 rounding makes an error of about 2⁻⁸ of a
// gradient, and AdamW's first updates have the size of the learning rate however small a gradient is.
func (t gpuTraining) tolerance() float64 {
	if t.Precision == "bf16" {
		return 0.03
	}
	return trainTolerance
}

// stepFLOPs are those of the matmuls of a step, with those of all scores and with those of the causal mask alone.
type stepFLOPs struct{ all, causal float64 }

// flops counts 6 for each weight of a matmul and token, and for each layer and token 12·width·sequence of scores and
// values (Chowdhery et al. 2022, "PaLM", appendix B); causal has half of the latter. What is recomputed does not count.
func (t gpuTraining) flops() (f stepFLOPs, err error) {
	model := cost.FromGPT(t.Config)
	for _, causal := range []bool{false, true} {
		work, err := model.FLOPs(cost.Step{Sequences: t.Batch, Causal: causal})
		if err != nil {
			return f, err
		}
		if causal {
			f.causal = work.Model()
		} else {
			f.all = work.Model()
		}
	}
	return f, nil
}

// gpuTokens is the index of the first batch's random numbers. Parameters have those from 0.
const gpuTokens = 1 << 20

// step is the batch of a step: tokens of about Zipf's distribution, so that the gradients of the token table are added
// up as for text. A number of bits is uniform, up to those of the vocabulary, and so is the token below.
func (t gpuTraining) step(step int) (inputs, targets *tensors.Tensor, err error) {
	var in, out []int32
	for row := range t.Batch {
		for i := range t.Seq + 1 {
			h := splitmix(uint64(gpuTokens+step)<<32 + uint64(row*(t.Seq+1)+i))
			token := int32(h >> 32 % (1 << (h % uint64(bits.Len(uint(t.Vocab))))))
			if i < t.Seq {
				in = append(in, token)
			}
			if i > 0 {
				out = append(out, token)
			}
		}
	}
	inputs = tensors.FromFlatDataAndDimensions(in, t.Batch, t.Seq)
	return inputs, tensors.FromFlatDataAndDimensions(out, t.Batch, t.Seq), nil
}

// gpuAttention is causal attention of a batch to be measured: the output, and the gradients of queries, keys and values
// for a given gradient of the output.
type gpuAttention struct {
	Batch     int    `json:"batch"`
	Tokens    int    `json:"tokens"` // of a sequence
	Heads     int    `json:"heads"`
	KVHeads   int    `json:"kv_heads"`
	Width     int    `json:"width"` // of a head
	Precision string `json:"precision"`
}

// attention lists the cases: of all lengths the same number of tokens, and the shape of the Llama that is trained.
func (b *gpuBench) attention() (all []gpuAttention, err error) {
	c := gpuAttention{Heads: 16, KVHeads: 16, Width: 128, Precision: b.precision}
	total := 32 << 10
	if b.tiny {
		c.Heads, c.KVHeads, c.Width = 4, 4, 16
		total = 256
	}
	for _, tokens := range b.tokens {
		if b.tiny {
			tokens = max(1, tokens>>7)
		}
		if tokens < 1 || tokens > flashMost {
			return nil, fmt.Errorf("--sizes: %d tokens, want 1 to %d", tokens, flashMost)
		}
		c.Tokens, c.Batch = tokens, max(1, total/tokens)
		all = append(all, c)
	}
	llama, err := b.model("llama")
	c.Heads, c.KVHeads, c.Width = llama.Heads, llama.KVHeads, llama.Width/llama.Heads
	c.Tokens, c.Batch = llama.Seq, llama.Batch
	return append(all, c), err
}

func (c gpuAttention) String() string {
	text := fmt.Sprintf("attention of %d×%d tokens, %d heads of %d", c.Batch, c.Tokens, c.Heads, c.Width)
	if c.KVHeads != c.Heads {
		text += fmt.Sprintf(", %d of keys", c.KVHeads)
	}
	return text + ", " + c.Precision
}

// tolerance is the error allowed of fingerprints.
func (c gpuAttention) tolerance() float64 {
	if c.Precision == "bf16" {
		return 0.02
	}
	return 1e-4
}

// flops counts two matmuls forward and five backward, and of each the half that a causal mask leaves, as the benchmarks
// of FlashAttention-2 do (Dao 2023, §4.1).
func (c gpuAttention) flops() float64 {
	matmul := 2 * float64(c.Batch) * float64(c.Heads) * float64(c.Tokens) * float64(c.Tokens) * float64(c.Width)
	return (2 + 5) * matmul / 2
}

// gpuFingerprint is [fingerprint] of at most 2²⁰ elements of a result, evenly spaced.
func gpuFingerprint(flat []float32) float64 {
	count := min(len(flat), 1<<20)
	stride := len(flat) / count
	part := make([]float32, count)
	for i := range part {
		part[i] = flat[i*stride]
	}
	return fingerprint(part)
}
