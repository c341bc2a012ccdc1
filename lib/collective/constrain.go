package collective

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// Constrain sets the placement of x on the mesh, in a graph compiled by xla.CompileAuto, where the compiler chooses the
// collectives. x has its unsharded shape. The gradient gets the same placement.
func Constrain(x *graph.Node, p xla.Placement) *graph.Node { return xla.Constrain(x, p) }
