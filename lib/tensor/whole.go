package tensor

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// Replicated is for parameters that every device has whole but uses, with Sequence, on its tokens only: those of
// normalizations, the biases behind [Group.Rows], the table of positions. Each device's gradients are then those of its
// tokens. Whole returns the same nodes, whose gradients are summed over the devices, all in one all-reduce (one for
// each type where there are several), in their own type. Without Sequence every device has the whole gradients already,
// and the nodes are returned as they are.
func (t Group) Replicated(ps []*graph.Node) []*graph.Node {
	if len(ps) == 0 || !t.sharesTokens(ps[0].Graph()) {
		return slices.Clone(ps)
	}
	return autodiff.Custom(ps,
		func(in []*graph.Node) []*graph.Node { return in },
		func(_, _, v []*graph.Node) []*graph.Node { return collective.AllReduceEach(v, collective.Sum, t.Axis) })
}
