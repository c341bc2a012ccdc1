package gpt

import (
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/params"
)

// A mixture of experts has losses of its own, such as that which balances their load. Blocks pass the sum of each
// token's to the next one in an additional column of their output, so that the end of a pipeline has it, wherever the
// blocks are. The column is always zero: only its gradient matters, and the loss of a step is that of the language
// model alone, as Megatron-LM reports it.

// term splits the additional column (B,T,1) from what blocks pass on; nil without experts.
func (c layers) term(x *graph.Node) (features, term *graph.Node) {
	if !c.mixture() {
		return x, nil
	}
	part := func(r graph.SliceAxisSpec) *graph.Node {
		return graph.Slice(x, graph.AxisRange(), graph.AxisRange(), r)
	}
	return part(graph.AxisRange(0, c.Width)), part(graph.AxisRangeToEnd(c.Width))
}

// withTerm adds the column again; nil for zeros.
func (c layers) withTerm(x, term *graph.Node) *graph.Node {
	if !c.mixture() {
		return x
	}
	if term == nil {
		term = graph.Zeros(x.Graph(), shapes.Make(x.DType(), x.Shape().Dim(0), x.Shape().Dim(1), 1))
	}
	return graph.Concatenate([]*graph.Node{x, term}, -1)
}

// experts is the mixture of experts of the block at a path for x (B,T,C), and its term (B,T,1).
func (c layers) experts(p params.Nodes, at string, x *graph.Node, saved saved) (y, term *graph.Node) {
	layer := expert.Layer{Config: c.Experts, Axes: c.expertAxes, Sequence: slices.Clone(c.sequence.Axes()),
		Activate: c.activate, Matmul: c.Matmul}
	own, split := x, c.tensor.Size(x.Graph()) > 1 // each tensor-parallel device has its part of the tokens
	if split {
		layer.Sequence = append(layer.Sequence, c.tensor.Axis)
		if !c.tensor.Sequence {
			own = collective.Part(collective.F(x, c.tensor.Axis), 1, c.tensor.Axis)
		}
	}
	y, term = layer.Apply(p, at, own)
	term = graph.InsertAxes(graph.ConvertDType(graph.Sub(term, graph.StopGradient(term)), x.DType()), -1)
	if split && !c.tensor.Sequence {
		y, term = c.allTokens(y), c.allTokens(term)
	}
	if c.SharedExperts > 0 {
		y = graph.Add(y, c.mlp(p, at+".shared", x, saved))
	}
	return y, term
}

// allTokens gathers the tokens of tensor-parallel devices from x (B,T/n,…). All of them compute the same with the
// result, so each takes its own part of the gradient.
func (c layers) allTokens(x *graph.Node) *graph.Node {
	return autodiff.Custom([]*graph.Node{x},
		func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{collective.AllGather(in[0], 1, c.tensor.Axis)}
		},
		func(_, _, v []*graph.Node) []*graph.Node {
			return []*graph.Node{collective.Part(v[0], 1, c.tensor.Axis)}
		})[0]
}

// lossOf is the loss of the logits (B,T,V) for x, what the last block passed on, with its terms.
func (c layers) lossOf(x, logits, targets *graph.Node) *graph.Node {
	loss := c.loss(logits, targets)
	if _, term := c.term(x); term != nil {
		if c.tensor.Sequence {
			term = c.allTokens(term)
		}
		loss = graph.Add(loss, graph.ConvertDType(graph.ReduceAllMean(term), loss.DType()))
	}
	return loss
}
