package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Loss is the whole model: the mean [CrossEntropy], in nats, of predicting each of the targets (B,T) from the inputs
// (B,T) up to its position. It returns a scalar. It panics if a parameter is missing or a shape does not fit.
func (c Config) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return CrossEntropy(c.Forward(p, inputs), targets)
}

// Forward returns the logits (B,T,V) of the token that follows each of the tokens (B,T).
// It is [Config.Head] of every [Config.Block] in turn of [Config.Embed], and panics where they do.
func (c Config) Forward(p params.Nodes, tokens *graph.Node) *graph.Node {
	x := c.Embed(p, tokens)
	for i := range c.Layers {
		x = c.Block(p, i, x)
	}
	return c.Head(p, x)
}
