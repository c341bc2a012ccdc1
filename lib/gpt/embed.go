package gpt

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Embed returns the embeddings (B,T,C) of the tokens (B,T), of any integer type, plus, where positions are learned,
// those of positions 0 to T-1. T may be less than Seq. A token outside of the vocabulary is not noticed: it reads the
// nearest row. The noise may be nil. It panics if "tok" or "pos" is missing, tokens are not integers of rank 2 or T is
// more than Seq.
func (c Config) Embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	return c.alone().embed(p, tokens, noise)
}

// embed is Embed of the device's tokens.
func (c layers) embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) > c.longest(tokens.Graph()) {
		panic(fmt.Errorf("gpt: tokens have shape %s: want (B,T) with T at most Config.Seq %d", tokens.Shape(), c.Seq))
	}
	p = c.shared(tokens.Graph(), p, c.EmbedPaths()...)
	// In float32, so that the gradients of a row add up in it, over all of its places in the batch.
	x := precision.Widen(c.tensor.Embed(p.Get("tok"), tokens)) // (B,T,C)
	if c.Positions != Rotary {
		pos := precision.Widen(p.Get("pos"))
		if c.everyToken() {
			pos = graph.Slice(pos, graph.AxisRangeFromStart(tokens.Shape().Dim(1))) // (T,C)
		} else { // padding's positions may lie behind the last
			pos = graph.Gather(pos, graph.InsertAxes(graph.MinScalar(c.places(x.Graph(), tokens.Shape().Dim(1)), c.Seq-1), -1))
		}
		x = graph.Add(x, graph.ExpandLeftToRank(pos, 3))
	}
	return c.dropTokens(graph.ConvertDType(x, p.Get("tok").DType()), noise, afterEmbedding)
}
