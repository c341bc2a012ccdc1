package gpt

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Embed returns the sum (B,T,C) of the embeddings of the tokens (B,T), of any integer type, and of their positions
// 0 to T-1. T may be less than Seq. A token outside of the vocabulary is not noticed: it reads the nearest row.
// It panics if "tok" or "pos" is missing, tokens are not integers of rank 2 or T is more than Seq.
func (c Config) Embed(p params.Nodes, tokens *graph.Node) *graph.Node {
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) > c.Seq {
		panic(fmt.Errorf("gpt: tokens have shape %s: want (B,T) with T at most Config.Seq %d", tokens.Shape(), c.Seq))
	}
	t := tokens.Shape().Dim(1)
	tok := graph.Gather(p.Get("tok"), graph.InsertAxes(tokens, -1)) // (B,T,C)
	pos := graph.Slice(p.Get("pos"), graph.AxisRangeFromStart(t))   // (T,C)
	return graph.Add(tok, graph.ExpandLeftToRank(pos, 3))
}
