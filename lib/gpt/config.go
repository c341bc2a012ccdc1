// Package gpt is the language model that every technique of this project trains: a byte-level GPT as plain graph
// functions over named parameters, with its initial weights and its training text.
//
// The architecture is GPT-2's (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3): a
// Transformer decoder (Vaswani et al. 2017, "Attention Is All You Need") with a normalization before each sub-block.
// [Config] turns it, part by part, into Llama's (Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language
// Models", §2.2; grouped-query heads as in Llama 2).
//
// The model has no state. [Config.Params] lists the parameters, [Config.Init] makes their initial values, and the graph
// functions take them as [params.Nodes]: [Config.Loss] is the whole model; [Config.Embed], [Config.Block],
// [Config.Head] and [CrossEntropy] are the same model piece by piece, and [Config.Stage] any run of these pieces. In
// the shapes written beside their arguments, B is the batch, T the positions of the sequence, C the width, H the heads,
// K the key/value heads, D = C/H the width of a head and V the vocabulary.
//
// The model computes in the type of the parameters it is given: cast them to half precision, and activations and
// products are in half precision, too. Normalizations, softmax and the loss stay in float32.
package gpt

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Config is the architecture of a model. The sizes must be set; what follows them is GPT-2's where it is left at zero.
// The number of sequences in a batch is no part of it; the graph functions take it from their input.
type Config struct {
	// Layers is the number of Transformer blocks, at least 1.
	Layers int `json:"layers"`
	// Width is the number of features of a position, C; a multiple of Heads. Parameters and time of a block grow with
	// its square.
	Width int `json:"width"`
	// Heads is the number of attention heads, H, each Width/Heads features wide.
	Heads int `json:"heads"`
	// Seq is the number of positions in the longest sequence the model takes. The memory of attention scores grows with
	// its square, unless Flash is set.
	Seq int `json:"seq"`
	// Vocab is the number of tokens, V. Text is bytes: 256 takes any text, and a smaller vocabulary only a text whose
	// bytes are all below it.
	Vocab int `json:"vocab"`

	// KVHeads is the number of key and value heads, K, each shared by Heads/KVHeads query heads: grouped-query
	// attention (Ainslie et al. 2023). 0 is Heads; 1 is multi-query attention.
	KVHeads int `json:"kv_heads,omitempty"`
	// Hidden is the width inside the multi-layer perceptron. 0 is 4·Width.
	Hidden int `json:"hidden,omitempty"`
	// Gated makes the perceptron SwiGLU, silu(x·gate) ∘ (x·up), in place of GELU(x·up) (Shazeer 2020, "GLU Variants
	// Improve Transformer").
	Gated bool `json:"gated,omitempty"`
	// Activation is what the perceptron applies: "" or [Usual], GELU or, gated, SiLU; or [ReLU].
	Activation Activation `json:"activation,omitempty"`
	// Norm is the normalization: "" or [LayerNorm], or [RMSNorm].
	Norm Norm `json:"norm,omitempty"`
	// Positions says how the model knows where a token is: "" or [Learned], or [Rotary].
	Positions Positions `json:"positions,omitempty"`
	// Tied makes the head use the token table, transposed (Press & Wolf 2017, "Using the Output Embedding to Improve
	// Language Models").
	Tied bool `json:"tied,omitempty"`
	// NoBias leaves out the biases of the blocks' linear maps.
	NoBias bool `json:"no_bias,omitempty"`
	// Dropout is the share of values that [Config.NoisyLoss] sets to zero after the embedding, in the attention weights
	// and at the end of each sub-block (Srivastava et al. 2014), in [0,1). The loss without noise has none.
	Dropout float64 `json:"dropout,omitempty"`

	// Flash computes attention block by block without holding its scores, by [flash.Attention]: the same results but
	// for rounding, in memory that grows with Seq alone. The scores are always recomputed, whatever Recompute says of
	// them. It goes with neither Dropout nor Matmul, and needs lib/xla's backend.
	Flash bool `json:"flash,omitempty"`
	// Matmul says how products are computed where that differs from plain products in the parameters' type.
	Matmul precision.Matmul `json:"matmul,omitzero"`
	// Recompute says which activations are not kept for the backward pass but recomputed in it. It changes memory and
	// time, and results by rounding alone.
	Recompute recompute.Policy `json:"recompute,omitempty"`
	// Compress names the codec, as lib/compress parses it, in which the blocks' linear maps keep what they multiply and
	// the perceptron what its activation is applied to; "" keeps all as it is. The forward pass stays exact, and so do
	// the gradients with a lossless codec. CompressReLU is the codec for what comes out of a ReLU, half of which is
	// zero; "" is Compress.
	Compress     string `json:"compress,omitempty"`
	CompressReLU string `json:"compress_relu,omitempty"`
}

// Norm is a kind of normalization.
type Norm string

// Activation is what a perceptron applies.
type Activation string

// Positions is a way to tell positions.
type Positions string

const (
	Usual Activation = "usual"
	ReLU  Activation = "relu"

	LayerNorm Norm = "layernorm"
	RMSNorm   Norm = "rmsnorm"

	Learned Positions = "learned" // a table of Seq rows, added to the embedding
	Rotary  Positions = "rotary"  // queries and keys turned by their position
)

// ReferenceConfig returns the configuration of the reference model, which benchmarks and tests compare: 4 layers of
// width 256 with 8 heads, 256 positions and a token for each byte, 3 356 160 parameters. It is trained on [Reference]
// in batches of 16.
func ReferenceConfig() Config {
	return Config{Layers: 4, Width: 256, Heads: 8, Seq: 256, Vocab: 256}
}

// Validate returns an error that names the first field that is not valid, with its value and what to do.
func (c Config) Validate() error {
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"Layers", c.Layers, 1, 1 << 14}, {"Width", c.Width, 1, 1 << 20}, {"Heads", c.Heads, 1, 1 << 20},
		{"Seq", c.Seq, 1, 1 << 28}, {"Vocab", c.Vocab, 2, 1 << 24}, {"Hidden", c.hidden(), 1, 1 << 22},
	} {
		if f.value < f.least {
			return fmt.Errorf("gpt: Config.%s is %d: set it to at least %d", f.name, f.value, f.least)
		}
		if f.value > f.most { // below it no number of elements or bytes overflows
			return fmt.Errorf("gpt: Config.%s is %d: set it to at most %d", f.name, f.value, f.most)
		}
	}
	if c.Width%c.Heads != 0 {
		return fmt.Errorf("gpt: Config.Heads is %d, which does not divide Config.Width %d: choose a divisor, such as %d",
			c.Heads, c.Width, divisorBelow(c.Width, c.Heads))
	}
	switch {
	case c.KVHeads < 0 || c.Heads%c.kvHeads() != 0:
		return fmt.Errorf("gpt: Config.KVHeads is %d, which does not divide Config.Heads %d: choose a divisor, such as %d",
			c.KVHeads, c.Heads, divisorBelow(c.Heads, max(2, c.KVHeads)))
	case !slices.Contains([]Activation{"", Usual, ReLU}, c.Activation):
		return fmt.Errorf("gpt: Config.Activation is %q: set it to %q or %q", c.Activation, Usual, ReLU)
	case c.CompressReLU != "" && c.Activation != ReLU:
		return fmt.Errorf("gpt: Config.CompressReLU is %q without a ReLU: set Config.Activation to %q", c.CompressReLU, ReLU)
	case !slices.Contains([]Norm{"", LayerNorm, RMSNorm}, c.Norm):
		return fmt.Errorf("gpt: Config.Norm is %q: set it to %q or %q", c.Norm, LayerNorm, RMSNorm)
	case !slices.Contains([]Positions{"", Learned, Rotary}, c.Positions):
		return fmt.Errorf("gpt: Config.Positions is %q: set it to %q or %q", c.Positions, Learned, Rotary)
	case c.Positions == Rotary && c.headWidth()%2 != 0:
		return fmt.Errorf("gpt: Config.Positions is %q and a head is Width/Heads = %d features wide: rotary positions turn "+
			"pairs of features, so make it even", Rotary, c.headWidth())
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("gpt: Config.Dropout is %g: set it to at least 0 and less than 1", c.Dropout)
	case c.Flash && c.Dropout > 0:
		return fmt.Errorf("gpt: Config.Dropout is %g with Config.Flash, which never holds the attention weights that "+
			"would be dropped: "+
			"leave one of them out", c.Dropout)
	case c.Flash && c.Matmul != (precision.Matmul{}):
		return fmt.Errorf("gpt: Config.Matmul sets how products are computed, and with Config.Flash those of " +
			"attention are in float32: leave one of them out")
	}
	if err := c.Matmul.Validate(); err != nil {
		return fmt.Errorf("gpt: Config.Matmul: %w", err)
	}
	for _, f := range [][2]string{{"Compress", c.Compress}, {"CompressReLU", c.CompressReLU}} {
		if _, err := codec(f[1]); err != nil {
			return fmt.Errorf("gpt: Config.%s: %w", f[0], err)
		}
	}
	if _, err := c.Recompute.Plan(c.Layers); err != nil {
		return fmt.Errorf("gpt: Config.Recompute: %w", err)
	}
	return nil
}

// divisorBelow returns the largest divisor of n below limit, for a limit above 1.
func divisorBelow(n, limit int) int {
	d := min(n, limit-1)
	for n%d != 0 {
		d--
	}
	return d
}

func (c Config) headWidth() int { return c.Width / c.Heads }

func (c Config) kvHeads() int { return cmp.Or(c.KVHeads, c.Heads) }

func (c Config) hidden() int { return cmp.Or(c.Hidden, 4*c.Width) }
