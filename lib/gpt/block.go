package gpt

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Block returns the output (B,T,C) of Transformer block i, counted from 0, for x (B,T,C): attention and then the MLP,
// each on the normalized input and each added to it. Normalizing before each sub-layer keeps the gradients of a deep
// stack bounded (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"). The noise may be nil. It
// panics if a parameter of the block is missing or does not fit x.
func (c Config) Block(p params.Nodes, i int, x *graph.Node, noise *Noise) *graph.Node {
	plan := c.plan()
	return c.oneDevice().block(p, i, plan.Enter(i, x), noise, plan)
}

// block is Block after [recompute.Plan.Enter].
func (c layers) block(p params.Nodes, i int, x *graph.Node, noise *Noise, plan recompute.Plan) *graph.Node {
	at, noise := BlockName(i), noise.forLayer(i)
	saved := saved{plan, i}
	p = c.sharded(x.Graph(), p, at)
	y := c.attention(p, at, saved.after(recompute.Norm1, c.Normalize(p, at+".ln1", x)), noise, saved)
	x = saved.after(recompute.Mid, graph.Add(x, c.dropTokens(y, noise, afterAttention)))
	y = c.mlp(p, at, saved.after(recompute.Norm2, c.Normalize(p, at+".ln2", x)), saved)
	return saved.after(recompute.Down, graph.Add(x, c.dropTokens(y, noise, afterMLP)))
}

// saved applies the recomputation plan to the activations of a block; the zero value changes nothing.
type saved struct {
	plan  recompute.Plan
	block int
}

// after takes an operation's output.
func (m saved) after(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.After(m.block, op, x)
}

// within takes an intermediate result of an operation.
func (m saved) within(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.Within(m.block, op, x)
}

// plan returns the plan of Config.Recompute, and panics if that is invalid.
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

// MLP is the MLP of the block at a path, from x (B,T,C) to (B,T,C): widen to Hidden, apply [Config.Activation], and
// project back. It panics if a parameter is missing or does not fit x.
func (c Config) MLP(p params.Nodes, at string, x *graph.Node) *graph.Node {
	return c.oneDevice().mlp(p, at, x, saved{})
}

func (c layers) mlp(p params.Nodes, at string, x *graph.Node, saved saved) *graph.Node {
	paths := []string{at + ".up"}
	if c.Gated {
		paths = append(paths, at+".gate")
	}
	h := c.columns(p, x, paths...) // (B,T,hidden)
	for i := range h {
		h[i] = saved.after(recompute.Up, h[i])
	}
	return c.rows(p, at+".down", saved.after(recompute.Act, c.activate(h)), c.afterActivation())
}
