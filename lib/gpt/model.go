package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Loss is the full model: the mean [CrossEntropy], in nats, of predicting each of the targets (B,T) from the inputs
// (B,T) up to its position. It returns a float32 scalar (float64 for float64 parameters), and panics if a parameter is
// missing or a shape does not fit.
func (c Config) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return CrossEntropy(c.Forward(p, inputs), targets)
}

// NoisyLoss is [Config.Loss] with dropout, for training: key and row are those of [Noise].
func (c Config) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	return CrossEntropy(c.oneDevice().logits(p, inputs, &Noise{Key: key, Row: row}), targets)
}

// MatmulPrecision returns the precision of the model's matmuls. It implements train.Multiplier.
func (c Config) MatmulPrecision() precision.Matmul { return c.Matmul }

// Forward returns the logits (B,T,V) of the next token for each of the tokens (B,T): [Config.Embed], each
// [Config.Block] in turn, and [Config.Head]. It panics where they do.
func (c Config) Forward(p params.Nodes, tokens *graph.Node) *graph.Node {
	return c.oneDevice().logits(p, tokens, nil)
}

// logits is Forward for the device's tokens.
func (c layers) logits(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	plan := c.plan()
	x := plan.Enter(0, c.embed(p, tokens, noise))
	for i := range c.Layers {
		x = c.block(p, i, x, noise, plan)
	}
	return c.head(p, x)
}
