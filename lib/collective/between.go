package collective

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Between declares an axis between ranks that run separate programs on their own devices. It is called in the graph of
// each rank; size is the number of ranks and rank, an int32 scalar, this program's rank. [Rank], [AxisSize],
// [RingShift], [AllToAll] along axis 0 and [AllToAllV] then accept the axis like a mesh axis; all other operations
// panic. A function that moves data along it must be split with xla.NewSegments.
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

// IsBetween reports whether an axis was declared with [Between].
func IsBetween(g *graph.Graph, axis string) bool { _, ok := between(g, axis); return ok }

type (
	betweenAxis  string
	betweenRanks struct {
		size int
		rank *graph.Node
	}
)

// betweenAlone returns the number of ranks along an axis between ranks, if it is the only axis.
func betweenAlone(g *graph.Graph, axes []string) (int, bool) {
	if len(axes) != 1 {
		return 0, false
	}
	b, ok := between(g, axes[0])
	return b.size, ok
}

func between(g *graph.Graph, axis string) (betweenRanks, bool) {
	b, ok := g.State(betweenAxis(axis)).(betweenRanks)
	return b, ok
}
