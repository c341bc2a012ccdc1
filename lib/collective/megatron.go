package collective

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// F and G are the conjugate pair of Megatron-LM (Shoeybi et al. 2019, section 3),
// called f and g there: what stands before and behind a block whose weights are
// divided among the ranks while its input and output are the same on each. Between
// them each rank computes with its part of the weights; from G on all ranks compute the
// same again, and the same loss, which counts once and not once a rank.

// F is the identity, and its transpose the sum over all ranks:
//
//	x[a b], the same on each of N ranks → x
//
// It stands before a block with divided weights: each rank's gradient with respect to
// x is only its part's, and the sum is the whole.
func F(x *graph.Node, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "F", axes)
	return graph.IdentityWithCustomGradient(x, func(_, v *graph.Node) *graph.Node { return G(v, axes...) })
}

// G is the sum over all ranks, and its transpose the identity:
//
//	x[a b] on each of N ranks → [a b], the same on each
//
// It stands behind a block with divided weights: each rank's x is a part of a sum, and
// the gradient with respect to the sum is the gradient with respect to each part.
func G(x *graph.Node, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "G", axes)
	return xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum, Along: axes, Note: conjugate}.Apply(x)[0]
}
