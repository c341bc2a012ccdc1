package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Block returns the output (B,T,C) of block i, counted from 0, on x (B,T,C): attention and then the multi-layer
// perceptron, each on the normalized input and each added to it. Normalizing before, rather than after, keeps the
// gradient of a deep stack in bounds (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
// It panics if a parameter of the block is missing or does not fit x.
func (c Config) Block(p params.Nodes, i int, x *graph.Node) *graph.Node {
	at := BlockName(i)
	x = graph.Add(x, c.attention(p, at, LayerNorm(x, p.Get(at+".ln1.g"), p.Get(at+".ln1.b"))))
	return graph.Add(x, mlp(p, at, LayerNorm(x, p.Get(at+".ln2.g"), p.Get(at+".ln2.b"))))
}

// mlp widens x (B,T,C) fourfold, applies [GELU] and narrows it again (B,T,C).
func mlp(p params.Nodes, at string, x *graph.Node) *graph.Node {
	h := GELU(Linear(x, p.Get(at+".up.w"), p.Get(at+".up.b"))) // (B,T,4C)
	return Linear(h, p.Get(at+".down.w"), p.Get(at+".down.b"))
}
