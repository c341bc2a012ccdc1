package gpt

import (
	"cmp"
	"fmt"

	"github.com/gomlx/compute/dtypes/gotype"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Loss is the full model: the mean [CrossEntropy], in nats, of predicting each of the targets (B,T) from the inputs
// (B,T) up to its position. It returns a float32 scalar (float64 for float64 parameters), and panics if a parameter is
// missing or a shape does not fit. Losses of experts have gradients, and do not change its value.
func (c Config) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return c.oneDevice().fullLoss(p, inputs, targets, nil)
}

// NoisyLoss is [Config.Loss] with dropout, for training: key and row are those of [Noise].
func (c Config) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	return c.oneDevice().fullLoss(p, inputs, targets, &Noise{Key: key, Row: row})
}

// MatmulPrecision returns the precision of the model's matmuls. It implements train.Multiplier.
func (c Config) MatmulPrecision() precision.Matmul { return c.Matmul }

// Forward returns the logits (B,T,V) of the next token for each of the tokens (B,T): [Config.Embed], each
// [Config.Block] in turn, and [Config.Head]. It panics where they do.
func (c Config) Forward(p params.Nodes, tokens *graph.Node) *graph.Node {
	one := c.oneDevice()
	return one.head(p, one.through(p, tokens, nil))
}

// fullLoss is the loss of all layers, for the device's tokens.
func (c layers) fullLoss(p params.Nodes, inputs, targets *graph.Node, noise *Noise) *graph.Node {
	x := c.through(p, inputs, noise)
	return c.lossOf(x, c.head(p, x), targets)
}

// through is what the last block passes on to the head.
func (c layers) through(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	plan := c.plan()
	x := plan.Enter(0, c.embed(p, tokens, noise))
	for i := range c.Layers {
		x = c.block(p, i, x, noise, plan)
	}
	return x
}

// Chain returns the model as a chain of blocks: the embedding "embed", the Transformer blocks "h0", "h1", …, and the
// head "head". A tied token table is a parameter of embedding and head. An invalid configuration is an error.
func (c Config) Chain() (chain.Model, error) {
	if err := c.Validate(); err != nil {
		return chain.Model{}, err
	}
	return c.chain(func(*graph.Graph) layers { return c.oneDevice() })
}

// Chain is [Config.Chain] with tensor and sequence parallelism: the blocks use the device's shards of the parameters,
// and pass its tokens on to each other. Their graphs need the mesh.
func (m Parallel) Chain() (chain.Model, error) {
	if err := m.Validate(); err != nil {
		return chain.Model{}, err
	}
	return m.Config.chain(m.layers)
}

// chain returns the chain of layers that may depend on the graph's mesh.
func (c Config) chain(on func(*graph.Graph) layers) (chain.Model, error) {
	m := chain.Model{Initial: c.Init, Matmul: c.Matmul, Noisy: c.Dropout > 0, Check: c.CheckBatch,
		Buffers:   c.BufferNames(),
		Criterion: func(y, targets *graph.Node) *graph.Node { return on(y.Graph()).loss(y, targets) }}
	var err error
	add := func(name, kind string, paths []string, apply func(c layers, p params.Nodes, x *graph.Node,
		noise *Noise) *graph.Node) {
		tree, e := c.Params().Under(paths...)
		if e != nil {
			err = e
		}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: kind, Params: tree,
			Apply: func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
				var noise *Noise
				if key != nil {
					noise = &Noise{Key: key, Row: row}
				}
				return apply(on(x.Graph()), p, x, noise)
			}})
	}
	add("embed", "", c.EmbedPaths(), func(c layers, p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
		return c.embed(p, c.local(tokens), noise)
	})
	for i := range c.Layers {
		name, kind := BlockName(i), "block"
		switch {
		case c.Dropout > 0 || c.Recompute != recompute.None: // each block has random numbers, or a plan, of its own
			kind = ""
		case c.mixtureAt(i):
			kind = "experts"
		}
		add(name, kind, []string{name}, func(c layers, p params.Nodes, x *graph.Node, noise *Noise) *graph.Node {
			plan := c.plan()
			return c.block(p, i, plan.Enter(i, x), noise, plan)
		})
	}
	add("head", "", c.HeadPaths(), func(c layers, p params.Nodes, x *graph.Node,
		_ *Noise) *graph.Node {
		return c.head(p, x)
	})
	if c.mixture() {
		m.Blocks[len(m.Blocks)-1].Loss = func(p params.Nodes, x, targets, _, _ *graph.Node) *graph.Node {
			c := on(x.Graph())
			return c.lossOf(x, c.head(p, x), targets)
		}
	}
	return m, err
}

// CheckBatch returns an error for a batch (B,T) with a token outside of the vocabulary, which names the token and its
// place. The graph would not notice: the embedding reads another token, and the loss ignores it. Targets below 0 are
// allowed: the loss ignores them. It implements train.Checker.
func (c Config) CheckBatch(inputs, targets *tensors.Tensor) error {
	return cmp.Or(
		c.checkTokens("inputs", inputs, false, ""),
		c.checkTokens("targets", targets, true, ", or a negative one to ignore a position"))
}

// CheckBatch implements train.Checker: see [Config.CheckBatch].
func (m Parallel) CheckBatch(inputs, targets *tensors.Tensor) error {
	return m.Config.CheckBatch(inputs, targets)
}

func (c Config) checkTokens(what string, t *tensors.Tensor, masked bool, or string) error {
	at, token := -1, int64(0)
	if err := t.ConstFlatData(func(flat any) {
		switch tokens := flat.(type) {
		case []int8:
			at, token = outside(tokens, c.Vocab, masked)
		case []int16:
			at, token = outside(tokens, c.Vocab, masked)
		case []int32:
			at, token = outside(tokens, c.Vocab, masked)
		case []int64:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint8:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint16:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint32:
			at, token = outside(tokens, c.Vocab, masked)
		}
	}); err != nil || at < 0 || t.Rank() == 0 {
		return err
	}
	row := t.Size() / t.Shape().Dim(0)
	return fmt.Errorf("gpt: the %s have token %d in sequence %d at position %d, but the vocabulary has %d: use tokens "+
		"from 0 to %d%s", what, token, at/row, at%row, c.Vocab, c.Vocab-1, or)
}

// outside returns the index of the first token that is not in the vocabulary, or −1; masked allows negative tokens.
func outside[T gotype.NumericNotComplex](tokens []T, vocab int, masked bool) (int, int64) {
	for i, token := range tokens {
		if int64(token) >= int64(vocab) || token < 0 && !masked {
			return i, int64(token)
		}
	}
	return -1, 0
}
