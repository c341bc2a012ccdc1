package gpt

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
)

// Head returns the logits (B,T,V) of the last block's output x (B,T,C): the final normalization and a linear map
// without a bias, the token table's transpose if it is tied. It panics if a parameter is missing or does not fit x.
func (c Config) Head(p params.Nodes, x *graph.Node) *graph.Node {
	return c.alone().head(p, x)
}

// head is Head of the device's part of the vocabulary.
func (c layers) head(p params.Nodes, x *graph.Node) *graph.Node {
	p = c.shared(x.Graph(), p, c.HeadPaths()...)
	x = c.Normalize(p, "lnf", x)
	if c.Tied {
		return c.tensor.Columns(x, []*graph.Node{p.Get("tok")}, func(x, w *graph.Node) *graph.Node {
			return c.Matmul.Dot(x, []int{-1}, nil, w, []int{1}, nil)
		})[0]
	}
	return c.tensor.Columns(x, []*graph.Node{p.Get("head.w")}, c.matmul)[0]
}

// CrossEntropy returns the mean over all positions of −log softmax(logits)[target], in nats: a scalar, in float32 for
// half-precision logits. The logits are (B,T,V) and the targets (B,T), of any integer type; a target outside of the
// vocabulary adds nothing to the sum ([Config.CheckBatch] lets those below 0 be).
// It panics if the shapes do not fit.
func CrossEntropy(logits, targets *graph.Node) *graph.Node {
	if l, t := logits.Shape(), targets.Shape(); l.Rank() != 3 || !slices.Equal(l.Dimensions[:2], t.Dimensions) {
		panic(fmt.Errorf("gpt: logits have shape %s and targets %s: want (B,T,V) and (B,T)", l, t))
	}
	return graph.ReduceAllMean(tensor.Group{}.CrossEntropy(logits, targets, logits.Shape().Dim(-1)))
}
