// Package collective has collective operations inside a graph: between the devices of a mesh, along its named axes,
// with gradients.
//
// A graph function compiled by xla.Compile runs on every device of a mesh, with that device's shards. The functions of
// this package communicate along mesh axes: on a mesh with axes data=2 and tensor=4, AllReduce(x, Sum, "tensor") is one
// all-reduce among four ranks in each of two groups. With several axes the first is the major one; without axes all
// axes of the mesh take part.
//
// Gradients are those of the sum of all devices' losses. Each operation's comment names its backward pass. If every
// device computes the same loss, the sum counts it N times: see [F] and [G].
//
// The functions panic on invalid arguments, as GoMLX's do; xla.Program returns that as an error. They work inside While
// (which has no gradient in GoMLX) and under Checkpoint. All ranks must run the same operations: if a rank waits for
// others that never come, for example because a condition differs between devices, the program returns an error on CPUs
// after two minutes; XLA's own collectives end the process.
package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// AxisSize returns the number of ranks along mesh axes, and along axes that were declared with [Between].
func AxisSize(g *graph.Graph, axes ...string) int {
	ranks := 1
	axes = slices.DeleteFunc(slices.Clone(axes), func(axis string) bool {
		b, ok := between(g, axis)
		if ok {
			ranks *= b.size
		}
		return ok
	})
	if ranks > 1 && len(axes) == 0 {
		return ranks
	}
	_, size := along(g, "AxisSize", axes)
	return size * ranks
}

// Constrain sets the placement of x on the mesh, in a graph compiled by xla.CompileAuto, where the compiler chooses the
// collectives. x has its unsharded shape. The gradient gets the same placement.
func Constrain(x *graph.Node, p xla.Placement) *graph.Node { return xla.Constrain(x, p) }

// along checks the mesh axes of an operation, which default to all axes, and returns the number of ranks.
func along(g *graph.Graph, operation string, axes []string) ([]string, int) {
	mesh, ok := xla.MeshOf(g)
	if !ok || g.DistributedStrategy() != distributed.SPMD {
		panic(fmt.Errorf("%s needs a graph that each device of a mesh runs: compile the function with xla.Compile",
			operation))
	}
	axes = slices.Clone(axes)
	for _, axis := range axes {
		if IsBetween(g, axis) {
			panic(fmt.Errorf("%s along axis %q, which is between programs: only RingShift, AllToAll of axis 0 and "+
				"AllToAllV along that axis alone are possible", operation, axis))
		}
	}
	if len(axes) == 0 {
		axes = mesh.AxesNames()
	}
	size := 1
	for i, axis := range axes {
		n, err := mesh.AxisSize(axis)
		if err != nil {
			panic(fmt.Errorf("%s: the mesh has no axis %q, its axes are %q", operation, axis, mesh.AxesNames()))
		}
		if slices.Contains(axes[:i], axis) {
			panic(fmt.Errorf("%s: mesh axis %q is named twice", operation, axis))
		}
		size *= n
	}
	return axes, size
}

// tensorAxis checks an axis of a tensor (-1 is the last) and returns it counted from 0.
func tensorAxis(x *graph.Node, operation string, axis int) int {
	rank := x.Rank()
	if axis < -rank || axis >= rank {
		panic(fmt.Errorf("%s: %v has no axis %d", operation, x.Shape(), axis))
	}
	return (axis + rank) % rank
}

// evenly checks that the ranks divide an axis of a tensor.
func evenly(x *graph.Node, operation string, axis int, meshAxes []string, ranks int) {
	if n := x.Shape().Dimensions[axis]; n%ranks != 0 {
		panic(fmt.Errorf("%s: axis %d of %v has %d elements, which %d ranks along mesh axis %s cannot share evenly: "+
			"pad it, or use another axis", operation, axis, x.Shape(), n, ranks, strings.Join(meshAxes, ", ")))
	}
}

func checkRoot(operation string, root, ranks int) {
	if root < 0 || root >= ranks {
		panic(fmt.Errorf("%s: root %d is not one of the %d ranks 0 to %d", operation, root, ranks, ranks-1))
	}
}

// onRoot returns x on the root, and otherwise on the other ranks.
func onRoot(x, otherwise *graph.Node, root int, axes []string) *graph.Node {
	g := x.Graph()
	is := graph.Equal(Rank(g, axes...), graph.Const(g, int32(root)))
	return graph.Where(graph.BroadcastToShape(is, shapes.Make(dtypes.Bool, x.Shape().Dimensions...)), x, otherwise)
}
