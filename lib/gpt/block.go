package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Block returns the output (B,T,C) of block i, counted from 0, on x (B,T,C): attention and then the multi-layer
// perceptron, each on the normalized input and each added to it. Normalizing before, rather than after, keeps the
// gradient of a deep stack in bounds (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
// The noise may be nil. It panics if a parameter of the block is missing or does not fit x.
func (c Config) Block(p params.Nodes, i int, x *graph.Node, noise *Noise) *graph.Node {
	at, noise := BlockName(i), noise.forLayer(i)
	y := c.Attention(p, at, c.Normalize(p, at+".ln1", x), noise)
	x = graph.Add(x, c.drop(y, noise, afterAttention))
	y = c.MLP(p, at, c.Normalize(p, at+".ln2", x))
	return graph.Add(x, c.drop(y, noise, afterMLP))
}

// MLP is the multi-layer perceptron of the block at a path: it widens x (B,T,C) to Hidden, applies [GELU], or [SiLU] of
// a gate, and narrows it again (B,T,C). It panics if a parameter is missing or does not fit x.
func (c Config) MLP(p params.Nodes, at string, x *graph.Node) *graph.Node {
	h := c.Linear(p, at+".up", x) // (B,T,hidden)
	if c.Gated {
		h = graph.Mul(SiLU(c.Linear(p, at+".gate", x)), h)
	} else {
		h = GELU(h)
	}
	return c.Linear(p, at+".down", h)
}
