package gpt

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
)

// Head returns the logits (B,T,V) for the last block's output x (B,T,C): the final normalization and a linear layer
// without bias, whose weights are the token table's transpose if it is tied. It panics if a parameter is missing or
// does not fit x.
func (c Config) Head(p params.Nodes, x *graph.Node) *graph.Node {
	return c.oneDevice().head(p, x)
}

// head is Head for the device's part of the vocabulary.
func (c layers) head(p params.Nodes, x *graph.Node) *graph.Node {
	p = c.sharded(x.Graph(), p, c.HeadPaths()...)
	x = c.Normalize(p, "lnf", x)
	if c.Tied {
		return c.tensor.Columns(x, []*graph.Node{p.Get("tok")}, func(x, w *graph.Node) *graph.Node {
			return c.Matmul.Dot(x, []int{-1}, nil, w, []int{1}, nil)
		})[0]
	}
	return c.tensor.Columns(x, []*graph.Node{p.Get("head.w")}, c.matmul)[0]
}

// CrossEntropy returns the mean over all positions of −log softmax(logits)[target], in nats: a scalar, in float32 for
// half-precision logits. The logits are (B,T,V) and the targets (B,T), of any integer type. A target outside of the
// vocabulary contributes 0 ([Config.CheckBatch] allows negative ones). It panics if the shapes do not fit.
func CrossEntropy(logits, targets *graph.Node) *graph.Node {
	if l, t := logits.Shape(), targets.Shape(); l.Rank() != 3 || !slices.Equal(l.Dimensions[:2], t.Dimensions) {
		panic(fmt.Errorf("gpt: logits have shape %s and targets %s: use (B,T,V) and (B,T)", l, t))
	}
	return graph.ReduceAllMean(tensor.Group{}.CrossEntropy(logits, targets, logits.Shape().Dim(-1)))
}
