package gpt

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Embed returns the embeddings (B,T,C) of the tokens (B,T), of any integer type, plus, for learned positions, those of
// positions 0 to T-1. T may be less than Seq. A token outside of the vocabulary reads the nearest valid one. The noise
// may be nil. It panics if "tok" or "pos" is missing, tokens are not integers of rank 2 or T is more than Seq.
func (c Config) Embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	return c.oneDevice().embed(p, tokens, noise)
}

// embed is Embed for the device's tokens.
func (c layers) embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) > c.longest(tokens.Graph()) {
		panic(fmt.Errorf("gpt: tokens have shape %s: use (B,T) with T at most Config.Seq %d", tokens.Shape(), c.Seq))
	}
	p = c.sharded(tokens.Graph(), p, c.EmbedPaths()...)
	// Widened, so that the gradients of a token accumulate in float32 over all of its places in the batch.
	x := precision.Widen(c.tensor.Embed(p.Get("tok"), tokens)) // (B,T,C)
	if c.Positions != Rotary {
		pos := precision.Widen(p.Get("pos"))
		if c.hasAllTokens() {
			pos = graph.Slice(pos, graph.AxisRangeFromStart(tokens.Shape().Dim(1))) // (T,C)
		} else { // the positions of padding may be Seq or more
			at := graph.MinScalar(c.tokenPositions(x.Graph(), tokens.Shape().Dim(1)), c.Seq-1)
			pos = graph.Gather(pos, graph.InsertAxes(at, -1))
		}
		x = graph.Add(x, graph.ExpandLeftToRank(pos, 3))
	}
	return c.dropTokens(graph.ConvertDType(x, p.Get("tok").DType()), noise, afterEmbedding)
}
