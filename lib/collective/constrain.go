package collective

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// Constrain tells the compiler how x shall lie on the mesh at this place, in a graph
// compiled by xla.CompileAuto, where the compiler chooses the collectives. The shape
// stays that of the whole x; the gradient is constrained in the same way.
func Constrain(x *graph.Node, p xla.Placement) *graph.Node { return xla.Constrain(x, p) }
