// Package gpt is the language model that the techniques of this project train: a byte-level GPT as graph functions over
// named parameters, with its initial weights and its training text.
//
// The architecture is GPT-2's (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3): a
// Transformer decoder (Vaswani et al. 2017, "Attention Is All You Need") with a normalization before each sub-layer.
// Options of [Config] change it step by step into Llama's (Touvron et al. 2023, "LLaMA: Open and Efficient Foundation
// Language Models", §2.2; grouped-query attention as in Llama 2).
//
// The model has no state. [Config.Params] lists the parameters, [Config.Init] returns their initial values, and the
// graph functions take them as [params.Nodes]. [Config.Loss] is the full model; [Config.Embed], [Config.Block],
// [Config.Head] and [CrossEntropy] are its pieces. In shapes, B is
// the batch, T the positions of a sequence, C the width, H the heads, K the key/value heads, D = C/H the width of a
// head and V the vocabulary.
//
// The model computes in the type of its parameters: for half precision, cast them. Activations and matmuls are then in
// half precision too; normalizations, softmax and the loss stay in float32.
package gpt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Config is the architecture of a model. The sizes must be set; the zero value of the other fields is GPT-2's choice.
// The batch size is not part of it: the graph functions take it from their input.
type Config struct {
	// Layers is the number of Transformer blocks, at least 1.
	Layers int `json:"layers"`
	// Width is the number of features per position, C; a multiple of Heads. Parameters and time of a block grow with
	// its square.
	Width int `json:"width"`
	// Heads is the number of attention heads, H, each Width/Heads features wide.
	Heads int `json:"heads"`
	// Seq is the number of positions of the longest sequence. Without Flash, the memory of attention scores grows with
	// its square.
	Seq int `json:"seq"`
	// Vocab is the number of tokens, V. Tokens are bytes: 256 takes any text, a smaller vocabulary only text whose
	// bytes are below it.
	Vocab int `json:"vocab"`

	// KVHeads is the number of key and value heads, K, each shared by Heads/KVHeads query heads: grouped-query
	// attention (Ainslie et al. 2023). 0 is Heads; 1 is multi-query attention.
	KVHeads int `json:"kv_heads,omitempty"`
	// Hidden is the width inside the MLP. 0 is 4·Width.
	Hidden int `json:"hidden,omitempty"`
	// Gated replaces the MLP's GELU(x·up) by SwiGLU, silu(x·gate) ∘ (x·up) (Shazeer 2020, "GLU Variants Improve
	// Transformer").
	Gated bool `json:"gated,omitempty"`
	// Activation is that of the MLP: "" or [Usual] is GELU or, gated, SiLU; or [ReLU].
	Activation Activation `json:"activation,omitempty"`
	// Norm is the normalization: "" or [LayerNorm], or [RMSNorm].
	Norm Norm `json:"norm,omitempty"`
	// Positions is the position encoding: "" or [Learned], or [Rotary].
	Positions Positions `json:"positions,omitempty"`
	// Tied makes the head use the token table, transposed: tied embeddings (Press & Wolf 2017, "Using the Output
	// Embedding to Improve Language Models").
	Tied bool `json:"tied,omitempty"`
	// NoBias leaves out the biases of the blocks' linear maps.
	NoBias bool `json:"no_bias,omitempty"`
	// Dropout is the probability, in [0,1), with which [Config.NoisyLoss] sets values to zero after the embedding, in
	// the attention weights and at the end of each sub-layer (Srivastava et al. 2014). [Config.Loss] has no dropout.
	Dropout float64 `json:"dropout,omitempty"`

	// QKNorm normalizes queries and keys by [RMSNorm] over the features of each head, before rotary positions (Henry et
	// al. 2020, "Query-Key Normalization for Transformers"; Qwen3).
	QKNorm bool `json:"qk_norm,omitempty"`

	// Experts replaces the MLP of the blocks by a mixture of experts (see package expert), whose MLPs are like it, with
	// Experts.Hidden and without biases. The zero value is none. SharedExperts is the number of experts of that width
	// that every token goes through, and DenseLayers the number of first blocks that keep the MLP (DeepSeek-V3).
	Experts       expert.Config `json:"experts,omitzero"`
	SharedExperts int           `json:"shared_experts,omitempty"`
	DenseLayers   int           `json:"dense_layers,omitempty"`

	// Flash computes attention block by block with [flash.Attention], which never stores the scores: the same results
	// up to rounding, in memory linear in Seq. It always recomputes the scores, whatever Recompute says. It does not
	// support Dropout, and needs lib/xla's backend.
	Flash bool `json:"flash,omitempty"`
	// Matmul is the precision of matmuls, if it differs from the type of the parameters. With Flash the matmuls inside
	// of attention are not among them, as is usual for FP8.
	Matmul precision.Matmul `json:"matmul,omitzero"`
	// Recompute is the activation recomputation policy. It changes memory and time, and results only by rounding.
	Recompute recompute.Policy `json:"recompute,omitempty"`
	// Compress names the codec, as lib/compress parses it, in which the blocks' linear layers save their inputs, and
	// the activation its input, for the backward pass; "" does not compress. The forward pass stays exact, and with a
	// lossless codec the gradients do too. CompressReLU is the codec for the output of a ReLU, half of which is zero;
	// "" is Compress.
	Compress     string `json:"compress,omitempty"`
	CompressReLU string `json:"compress_relu,omitempty"`
}

// Norm is a kind of normalization.
type Norm string

// Activation is an activation function of the MLP.
type Activation string

// Positions is a position encoding.
type Positions string

const (
	Usual Activation = "usual"
	ReLU  Activation = "relu"

	LayerNorm Norm = "layernorm"
	RMSNorm   Norm = "rmsnorm"

	Learned Positions = "learned" // a table of Seq positions, added to the embedding
	Rotary  Positions = "rotary"  // queries and keys rotated by their position
)

// ReferenceConfig returns the configuration of the reference model, which benchmarks and tests use: 4 layers of width
// 256 with 8 heads, 256 positions and a token for each byte, 3 356 160 parameters. It is trained on [Reference] in
// batches of 16.
func ReferenceConfig() Config {
	return Config{Layers: 4, Width: 256, Heads: 8, Seq: 256, Vocab: 256}
}

// Validate returns an error that names the first invalid field, with its value and what to do.
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
		if f.value > f.most { // up to it no number of elements or bytes overflows
			return fmt.Errorf("gpt: Config.%s is %d: set it to at most %d", f.name, f.value, f.most)
		}
	}
	if c.Width%c.Heads != 0 {
		return fmt.Errorf("gpt: Config.Heads is %d, which does not divide Config.Width %d: choose a divisor, such as "+
			"%d", c.Heads, c.Width, divisorBelow(c.Width, c.Heads))
	}
	switch {
	case c.KVHeads < 0 || c.Heads%c.kvHeads() != 0:
		return fmt.Errorf("gpt: Config.KVHeads is %d, which does not divide Config.Heads %d: choose a divisor, such "+
			"as %d", c.KVHeads, c.Heads, divisorBelow(c.Heads, max(2, c.KVHeads)))
	case !slices.Contains([]Activation{"", Usual, ReLU}, c.Activation):
		return fmt.Errorf("gpt: Config.Activation is %q: set it to %q or %q", c.Activation, Usual, ReLU)
	case c.CompressReLU != "" && c.Activation != ReLU:
		return fmt.Errorf("gpt: Config.CompressReLU is %q without a ReLU: set Config.Activation to %q", c.CompressReLU,
			ReLU)
	case !slices.Contains([]Norm{"", LayerNorm, RMSNorm}, c.Norm):
		return fmt.Errorf("gpt: Config.Norm is %q: set it to %q or %q", c.Norm, LayerNorm, RMSNorm)
	case !slices.Contains([]Positions{"", Learned, Rotary}, c.Positions):
		return fmt.Errorf("gpt: Config.Positions is %q: set it to %q or %q", c.Positions, Learned, Rotary)
	case c.Positions == Rotary && c.headWidth()%2 != 0:
		return fmt.Errorf("gpt: Config.Positions is %q and Width/Heads is %d: rotary positions rotate pairs of "+
			"features, so make it even", Rotary, c.headWidth())
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("gpt: Config.Dropout is %g: set it to at least 0 and less than 1", c.Dropout)
	case c.Flash && c.Dropout > 0:
		return fmt.Errorf("gpt: Config.Dropout is %g with Config.Flash, which does not support dropout of attention "+
			"weights: unset one of the two", c.Dropout)
	}
	if c.mixture() {
		if err := c.Experts.Validate(); err != nil {
			return fmt.Errorf("gpt: Config.Experts: %w", err)
		}
	}
	switch {
	case !c.mixture() && (c.SharedExperts != 0 || c.DenseLayers != 0 || c.Experts != expert.Config{}):
		return fmt.Errorf("gpt: Config.SharedExperts is %d, DenseLayers %d and Experts %+v, and Experts.Experts is 0: "+
			"set it to the number of experts, or leave these out", c.SharedExperts, c.DenseLayers, c.Experts)
	case c.SharedExperts < 0 || c.DenseLayers < 0 || c.DenseLayers > 0 && c.DenseLayers >= c.Layers:
		return fmt.Errorf("gpt: Config.SharedExperts is %d and DenseLayers %d, of %d layers: choose at least 0, and "+
			"fewer than the layers", c.SharedExperts, c.DenseLayers, c.Layers)
	case c.mixture() && c.Compress != "":
		return fmt.Errorf("gpt: Config.Compress is %q with Config.Experts, whose rows it does not support: leave it out",
			c.Compress)
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

// mixture reports whether the model has experts, and mixtureAt whether a block has.
func (c Config) mixture() bool        { return c.Experts.Experts > 0 }
func (c Config) mixtureAt(i int) bool { return c.mixture() && i >= c.DenseLayers }

func (c Config) hidden() int { return cmp.Or(c.Hidden, 4*c.Width) }

// Params lists the parameters, all float32: the token table "tok" (V,C), the table "pos" (Seq,C) of learned positions,
// the parameters of each block below its [BlockName], the last normalization "lnf", and the head "head.w" (C,V) unless
// it is tied. Weight matrices end in ".w" and have shape (in,out); biases end in ".b", normalization scales in ".g".
func (c Config) Params() params.Tree {
	tree := params.Tree{spec("tok", c.Vocab, c.Width)}
	if c.Positions != Rotary {
		tree = append(tree, spec("pos", c.Seq, c.Width))
	}
	for i := range c.Layers {
		tree = append(tree, c.blockParams(i)...)
	}
	tree = append(tree, c.normParams("lnf")...)
	if !c.Tied {
		tree = append(tree, spec("head.w", c.Width, c.Vocab))
	}
	return tree
}

// BlockName returns the path of block i in the parameter tree: "h0" for the first.
func BlockName(i int) string { return fmt.Sprintf("h%d", i) }

// blockParams lists the parameters of a block.
func (c Config) blockParams(i int) params.Tree {
	at, d := BlockName(i), c.headWidth()
	tree := c.normParams(at + ".ln1")
	// Columns of qkv: first q, k or v; then the head; then the feature.
	tree = append(tree, c.linearParams(at+".qkv", c.Width, (c.Heads+2*c.kvHeads())*d)...)
	if c.QKNorm {
		tree = append(tree, spec(at+".qnorm.g", d), spec(at+".knorm.g", d))
	}
	tree = append(tree, c.linearParams(at+".o", c.Width, c.Width)...)
	tree = append(tree, c.normParams(at+".ln2")...)
	if !c.mixtureAt(i) {
		return append(tree, c.mlpParams(at, c.hidden())...)
	}
	tree = append(tree, c.Experts.Params(at, c.Width, c.Gated)...)
	if c.SharedExperts > 0 {
		tree = append(tree, c.mlpParams(at+".shared", c.SharedExperts*c.Experts.Hidden)...)
	}
	return tree
}

func (c Config) mlpParams(at string, hidden int) (tree params.Tree) {
	if c.Gated {
		tree = append(tree, c.linearParams(at+".gate", c.Width, hidden)...)
	}
	tree = append(tree, c.linearParams(at+".up", c.Width, hidden)...)
	return append(tree, c.linearParams(at+".down", hidden, c.Width)...)
}

// BufferNames lists the parameters that are buffers (see train.Buffered): the load of experts.
func (c Config) BufferNames() (names []string) {
	for i := range c.Layers {
		if c.mixtureAt(i) {
			names = append(names, c.Experts.Buffers(BlockName(i))...)
		}
	}
	return names
}

func (c Config) linearParams(at string, in, out int) params.Tree {
	if c.NoBias {
		return params.Tree{spec(at+".w", in, out)}
	}
	return params.Tree{spec(at+".w", in, out), spec(at+".b", out)}
}

func (c Config) normParams(at string) params.Tree {
	if c.Norm == RMSNorm {
		return params.Tree{spec(at+".g", c.Width)}
	}
	return params.Tree{spec(at+".g", c.Width), spec(at+".b", c.Width)}
}

// EmbedPaths lists the paths of the parameters that [Config.Embed] needs.
func (c Config) EmbedPaths() []string {
	if c.Positions == Rotary {
		return []string{"tok"}
	}
	return []string{"tok", "pos"}
}

// HeadPaths lists the paths of the parameters that [Config.Head] needs.
func (c Config) HeadPaths() []string {
	if c.Tied {
		return []string{"lnf", "tok"}
	}
	return []string{"lnf", "head"}
}

func spec(name string, dims ...int) params.Spec { return params.New(name, dtypes.Float32, dims...) }

// Init returns the initial values of the parameters, in the order of [Config.Params] and in float32: 1 for
// normalization scales, 0 for biases, and uniform with standard deviation 0.02 for matrices and tables. Each value
// depends only on its index in the model, so it is the same on any number of devices. An invalid configuration is an
// error.
func (c Config) Init() ([]*tensors.Tensor, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	tree := c.Params()
	values := make([]*tensors.Tensor, len(tree))
	for i, s := range tree {
		flat := make([]float32, s.Size())
		first, buffer := c.Experts.Initial(s.Name)
		if strings.HasSuffix(s.Name, ".g") {
			first, buffer = 1, true
		}
		switch {
		case buffer:
			for k := range flat {
				flat[k] = first
			}
		case !strings.HasSuffix(s.Name, ".b"):
			for k := range flat {
				u := float64(splitmix64(uint64(i)<<32+uint64(k))>>40) / (1 << 24) // in [0,1)
				flat[k] = float32((2*u - 1) * 0.02 * math.Sqrt(3))
			}
		}
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values, nil
}

// splitmix64 returns the first output of the generator of that name seeded with x (Steele, Lea & Flood 2014, "Fast
// Splittable Pseudorandom Number Generators"): a hash of x.
func splitmix64(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
