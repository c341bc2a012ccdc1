// Package gpt is the language model that every technique of this project trains: a byte-level GPT as plain graph
// functions over named parameters, with its initial weights and its training text.
//
// The architecture is GPT-2's (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3): a
// Transformer decoder (Vaswani et al. 2017, "Attention Is All You Need") with learned positions and a layer
// normalization before each sub-block. It differs in its head, which is not tied to the token embedding and has no bias.
//
// The model has no state. [Config.Params] lists the parameters, [Config.Init] makes their initial values, and the graph
// functions take them as [params.Nodes]: [Config.Loss] is the whole model; [Config.Embed], [Config.Block], [Config.Head]
// and [CrossEntropy] are the same model piece by piece. In the shapes written beside their arguments, B is the batch, T
// the positions of the sequence, C the width, H the heads, D = C/H the width of a head and V the vocabulary.
package gpt

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
)

// Config is the architecture of a model. The zero value is not valid: every field must be set. The number of sequences
// in a batch is no part of it; the graph functions take it from their input.
type Config struct {
	// Layers is the number of Transformer blocks, at least 1.
	Layers int
	// Width is the number of features of a position, C; a multiple of Heads. Parameters and time of a block grow with
	// its square.
	Width int
	// Heads is the number of attention heads, H, each Width/Heads features wide.
	Heads int
	// Seq is the number of positions with an embedding, and so the longest sequence the model takes. The memory of
	// attention scores grows with its square.
	Seq int
	// Vocab is the number of tokens, V. Text is bytes: 256 takes any text, and a smaller vocabulary only a text whose
	// bytes are all below it.
	Vocab int
}

// ReferenceConfig returns the configuration of the reference model, which benchmarks and tests compare: 4 layers of
// width 256 with 8 heads, 256 positions and a token for each byte, 3 356 160 parameters. It is trained on [Reference] in
// batches of 16.
func ReferenceConfig() Config {
	return Config{Layers: 4, Width: 256, Heads: 8, Seq: 256, Vocab: 256}
}

// Validate returns an error that names the first field that is not valid, with its value and what to do.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"Layers", c.Layers, 1}, {"Width", c.Width, 1}, {"Heads", c.Heads, 1}, {"Seq", c.Seq, 1}, {"Vocab", c.Vocab, 2},
	} {
		if f.value < f.least {
			return fmt.Errorf("gpt: Config.%s is %d: set it to at least %d", f.name, f.value, f.least)
		}
	}
	if c.Width%c.Heads != 0 {
		divisor := c.Heads - 1
		for c.Width%divisor != 0 {
			divisor--
		}
		return fmt.Errorf("gpt: Config.Heads is %d, which does not divide Config.Width %d: choose a divisor, such as %d",
			c.Heads, c.Width, divisor)
	}
	return nil
}

// Params lists the parameters, all float32: the token table "tok" (V,C), the position table "pos" (Seq,C), the
// parameters of each block below its [BlockName], the last normalization "lnf" and the head "head.w" (C,V).
// Matrices end in ".w" and have shape (in,out); biases end in ".b", normalization scales in ".g".
func (c Config) Params() params.Tree {
	spec := func(name string, dims ...int) params.Spec { return params.New(name, dtypes.Float32, dims...) }
	d := c.Width
	tree := params.Tree{spec("tok", c.Vocab, d), spec("pos", c.Seq, d)}
	for i := range c.Layers {
		at := BlockName(i)
		tree = append(tree,
			spec(at+".ln1.g", d), spec(at+".ln1.b", d),
			spec(at+".qkv.w", d, 3*d), spec(at+".qkv.b", 3*d), // columns: q, k or v; then head; then its feature
			spec(at+".o.w", d, d), spec(at+".o.b", d),
			spec(at+".ln2.g", d), spec(at+".ln2.b", d),
			spec(at+".up.w", d, 4*d), spec(at+".up.b", 4*d),
			spec(at+".down.w", 4*d, d), spec(at+".down.b", d))
	}
	return append(tree, spec("lnf.g", d), spec("lnf.b", d), spec("head.w", d, c.Vocab))
}

// BlockName returns the path of block i in the parameter tree: "h0" for the first.
func BlockName(i int) string { return fmt.Sprintf("h%d", i) }
