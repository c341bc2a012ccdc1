package collective

import (
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/xla"
)

// Rank returns the device's rank along mesh axes, an int32 scalar. It has no gradient.
//
// go-xla cannot ask XLA for the device's number, so it needs an all-to-all of the numbers 0 to N-1, once in each graph
// for each choice of axes.
func Rank(g *graph.Graph, axes ...string) *graph.Node {
	if len(axes) == 1 {
		if b, ok := between(g, axes[0]); ok {
			return b.rank
		}
	}
	axes, n := along(g, "Rank", axes)
	if n == 1 {
		return graph.Const(g, int32(0))
	}
	build := func() *graph.Node {
		numbers := graph.Iota(g, shapes.Make(dtypes.Int32, n), 0)
		mine := xla.Collective{Kind: xla.AllToAll, Along: axes}.Apply(numbers)[0] // rank r receives r from each
		return graph.StopGradient(graph.Reshape(graph.Slice(mine, graph.AxisElem(0))))
	}
	if !g.CurrentFunc().IsMain() { // a value of another function cannot be used everywhere
		return build()
	}
	type asked struct{ axes string }
	return autodiff.Once(g, asked{strings.Join(axes, ",")}, build)
}

// Barrier returns x on each rank after all ranks have computed their x. Its backward pass is the identity.
func Barrier(x *graph.Node, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "Barrier", axes)
	arrived := graph.SchedulingBarrier(graph.Const(x.Graph(), int32(0)), graph.StopGradient(x))
	return graph.SchedulingBarrier(x, AllReduce(arrived, Sum, axes...))
}
