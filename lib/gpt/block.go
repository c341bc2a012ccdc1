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
	return c.alone().block(p, i, plan.Enter(i, x), noise, plan)
}

// block is Block after [recompute.Plan.Enter].
func (c layers) block(p params.Nodes, i int, x *graph.Node, noise *Noise, plan recompute.Plan) *graph.Node {
	at, noise := BlockName(i), noise.forLayer(i)
	made := made{plan, i}
	p = c.shared(x.Graph(), p, at)
	y := c.attention(p, at, made.after(recompute.Norm1, c.Normalize(p, at+".ln1", x)), noise, made)
	x = made.after(recompute.Mid, graph.Add(x, c.dropTokens(y, noise, afterAttention)))
	y = c.mlp(p, at, made.after(recompute.Norm2, c.Normalize(p, at+".ln2", x)), made)
	return made.after(recompute.Down, graph.Add(x, c.dropTokens(y, noise, afterMLP)))
}

// made knows what becomes of what the operations of a block make; the zero value leaves it as it is.
type made struct {
	plan  recompute.Plan
	block int
}

// after is for an operation's output.
func (m made) after(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.After(m.block, op, x)
}

// within is for what is made on the way to it.
func (m made) within(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.Within(m.block, op, x)
}

// plan is what Recompute says. It panics if that is not valid.
func (c Config) plan() recompute.Plan {
	plan, err := c.Recompute.Plan(c.Layers)
	if err != nil {
		panic(fmt.Errorf("gpt: Config.Recompute: %w", err))
	}
	if c.Flash {
		plan = plan.FusedAttention()
	}
	return plan
}

// MLP is the multi-layer perceptron of the block at a path: it widens x (B,T,C) to Hidden, applies [Config.Activation],
// and narrows it again (B,T,C). It panics if a parameter is missing or does not fit x.
func (c Config) MLP(p params.Nodes, at string, x *graph.Node) *graph.Node {
	return c.alone().mlp(p, at, x, made{})
}

func (c layers) mlp(p params.Nodes, at string, x *graph.Node, made made) *graph.Node {
	paths := []string{at + ".up"}
	if c.Gated {
		paths = append(paths, at+".gate")
	}
	h := c.columns(p, x, paths...) // (B,T,hidden)
	for i := range h {
		h[i] = made.after(recompute.Up, h[i])
	}
	return c.rows(p, at+".down", made.after(recompute.Act, c.activate(h)), c.afterActivation())
}
