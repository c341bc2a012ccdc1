package gpt

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Block returns the output (B,T,C) of block i, counted from 0, on x (B,T,C): attention and then the multi-layer
// perceptron, each on the normalized input and each added to it. Normalizing before, rather than after, keeps the
// gradient of a deep stack in bounds (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
// The noise may be nil. It panics if a parameter of the block is missing or does not fit x.
func (c Config) Block(p params.Nodes, i int, x *graph.Node, noise *Noise) *graph.Node {
	plan := c.plan()
	return c.block(p, i, plan.Enter(i, x), noise, plan)
}

// block is Block after [recompute.Plan.Enter].
func (c Config) block(p params.Nodes, i int, x *graph.Node, noise *Noise, plan recompute.Plan) *graph.Node {
	at, noise := BlockName(i), noise.forLayer(i)
	made := func(op recompute.Op, x *graph.Node) *graph.Node { return plan.After(i, op, x) }
	y := c.attention(p, at, made(recompute.Norm1, c.Normalize(p, at+".ln1", x)), noise, made)
	x = made(recompute.Mid, graph.Add(x, c.drop(y, noise, afterAttention)))
	y = c.mlp(p, at, made(recompute.Norm2, c.Normalize(p, at+".ln2", x)), made)
	return made(recompute.Down, graph.Add(x, c.drop(y, noise, afterMLP)))
}

// made is what is done with what an operation has made.
type made func(op recompute.Op, x *graph.Node) *graph.Node

// keep leaves it as it is.
func keep(_ recompute.Op, x *graph.Node) *graph.Node { return x }

// plan is what Recompute says. It panics if that is not valid.
func (c Config) plan() recompute.Plan {
	plan, err := c.Recompute.Plan(c.Layers)
	if err != nil {
		panic(fmt.Errorf("gpt: Config.Recompute: %w", err))
	}
	return plan
}

// MLP is the multi-layer perceptron of the block at a path: it widens x (B,T,C) to Hidden, applies [Config.Activation], and
// narrows it again (B,T,C). It panics if a parameter is missing or does not fit x.
func (c Config) MLP(p params.Nodes, at string, x *graph.Node) *graph.Node {
	return c.mlp(p, at, x, keep)
}

func (c Config) mlp(p params.Nodes, at string, x *graph.Node, made made) *graph.Node {
	h := []*graph.Node{made(recompute.Up, c.Linear(p, at+".up", x))} // (B,T,hidden)
	if c.Gated {
		h = append(h, made(recompute.Up, c.Linear(p, at+".gate", x)))
	}
	return c.linear(p, at+".down", made(recompute.Act, c.activate(h)), c.afterActivation())
}
