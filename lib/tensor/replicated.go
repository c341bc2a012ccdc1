package tensor

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// Replicated sums the gradients of parameters that every device has but, with Sequence, uses only for its tokens: of
// normalizations, biases after [Group.Rows], position embeddings. It returns the same nodes; one all-reduce for each
// type sums their gradients over the devices, in that type. Without Sequence the gradients are complete on each device,
// and it adds nothing.
func (t Group) Replicated(ps []*graph.Node) []*graph.Node {
	if len(ps) == 0 || !t.splitsTokens(ps[0].Graph()) {
		return slices.Clone(ps)
	}
	return autodiff.Custom(ps, func(in []*graph.Node) []*graph.Node { return in },
		func(_, _, v []*graph.Node) []*graph.Node { return collective.AllReduceEach(v, collective.Sum, t.Axis) })
}
