package collective

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Between has a graph know an axis that lies between programs: so many ranks, of which each has a program of its own and
// devices of its own, and of which this is number rank, an int32 scalar. [Rank], [AxisSize], [RingShift] and [IsBetween]
// take it as they do mesh axes; a function that shifts along it is compiled with xla.NewCut.
func Between(g *graph.Graph, axis string, size int, rank *graph.Node) {
	autodiff.Prepare(g, func(to *graph.Graph) {
		own := rank
		if to != g {
			own = graph.Parameter(to, to.UniqueName("rank"), shapes.Make(dtypes.Int32))
		}
		same := autodiff.Once(to, betweenAxis(axis), func() *graph.Node { return graph.Identity(own) })
		to.AttachState(betweenAxis(axis), betweenRanks{size, graph.StopGradient(same)})
	})
}

// IsBetween says whether an axis lies between programs.
func IsBetween(g *graph.Graph, axis string) bool { _, ok := between(g, axis); return ok }

type (
	betweenAxis  string
	betweenRanks struct {
		size int
		rank *graph.Node
	}
)

func between(g *graph.Graph, axis string) (betweenRanks, bool) {
	b, ok := g.State(betweenAxis(axis)).(betweenRanks)
	return b, ok
}
