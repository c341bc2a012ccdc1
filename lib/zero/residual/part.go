package residual

import (
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// Shard returns this rank's shard of x along a mesh axis: a vector of bits, padded if the number of ranks does not
// divide x's size. (Bits, because compilers may store floats in wider types.) It builds a graph, and panics if the mesh
// has no such axis.
func Shard(x *graph.Node, axis string) *graph.Node {
	ranks := collective.AxisSize(x.Graph(), axis)
	flat := graph.Reshape(precision.ToBits(x), -1)
	if over := x.Shape().Size() % ranks; over > 0 {
		flat = graph.Concatenate([]*graph.Node{flat, graph.Zeros(x.Graph(), shapes.Make(flat.DType(), ranks-over))}, 0)
	}
	return collective.Part(flat, 0, axis)
}

// Gather is the inverse of [Shard]: it gathers the shards of an array with the given shape. It builds a graph, and
// panics if the mesh has no such axis.
func Gather(part *graph.Node, like shapes.Shape, axis string) *graph.Node {
	flat := collective.AllGather(part, 0, axis)
	if flat.Shape().Size() > like.Size() {
		flat = graph.Slice(flat, graph.AxisRange(0, like.Size()))
	}
	return precision.FromBits(graph.Reshape(flat, like.Dimensions...), like.DType)
}

// Hold returns the nodes unchanged, and makes XLA compute all of them before anything uses one, each into its own
// memory, so that it can free what they were computed from. It builds a graph, and panics if the mesh has no such axis.
//
// Barriers do not do that on CPUs, where XLA drops them before it fuses operations. It then slices the shard out of x
// only where the shard is gathered, and keeps x until then; and with residual connections, where x is a sum of all
// outputs of blocks before, it adds them up in each consumer and keeps all outputs. Hold is therefore a conditional,
// which XLA does not fuse into, and whose branch without copies always runs. XLA cannot know that, since ranks exchange
// their numbers while the program runs (collective.Rank).
func Hold(axis string, nodes ...*graph.Node) []*graph.Node {
	g := nodes[0].Graph()
	always := graph.GreaterOrEqual(collective.Rank(g, axis), graph.Const(g, int32(0)))
	bits := make([]*graph.Node, len(nodes))
	for i, n := range nodes {
		bits[i] = precision.ToBits(n)
	}
	held := xla.If(always, func() []*graph.Node { return bits }, func() []*graph.Node {
		nothing := make([]*graph.Node, len(bits))
		for i, b := range bits {
			nothing[i] = graph.ZerosLike(b)
		}
		return nothing
	})
	for i, n := range nodes {
		held[i] = precision.FromBits(held[i], n.DType())
	}
	return held
}
