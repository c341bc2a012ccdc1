package collective

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// F and G are f and g of Megatron-LM (Shoeybi et al. 2019, section 3). They enclose layers whose weights are sharded
// over the ranks while input and output are the same on each rank. With G the common loss counts once, not once for
// each rank.

// F is the identity, and sums the gradient over all ranks:
//
//	x[a b], the same on each of N ranks → x
//
// Use it before layers with sharded weights: the gradient of x on each rank is only that of its shard.
func F(x *graph.Node, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "F", axes)
	return graph.IdentityWithCustomGradient(x, func(_, v *graph.Node) *graph.Node { return G(v, axes...) })
}

// G sums x over all ranks, and passes the gradient unchanged:
//
//	x[a b] on each of N ranks → [a b], the same on each
//
// Use it after layers with sharded weights: each rank's x is a term of the sum.
func G(x *graph.Node, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "G", axes)
	return xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum, Along: axes, Note: conjugate}.Apply(x)[0]
}
