package residual

import (
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// Shard is this rank's part of x's bits, in one dimension, padded where the ranks along a mesh axis do not divide it.
// (Bits, since compilers may hold floats in wider types.) It builds a graph, and panics without such an axis.
func Shard(x *graph.Node, axis string) *graph.Node {
	ranks := collective.AxisSize(x.Graph(), axis)
	flat := graph.Reshape(precision.ToBits(x), -1)
	if over := x.Shape().Size() % ranks; over > 0 {
		flat = graph.Concatenate([]*graph.Node{flat, graph.Zeros(x.Graph(), shapes.Make(flat.DType(), ranks-over))}, 0)
	}
	return collective.Part(flat, 0, axis)
}

// Gather gathers the parts of an array of a shape. It builds a graph, and panics without such a mesh axis.
func Gather(part *graph.Node, like shapes.Shape, axis string) *graph.Node {
	flat := collective.AllGather(part, 0, axis)
	if flat.Shape().Size() > like.Size() {
		flat = graph.Slice(flat, graph.AxisRange(0, like.Size()))
	}
	return precision.FromBits(graph.Reshape(flat, like.Dimensions...), like.DType)
}

// Hold returns the nodes as they are, all made at one time and each in memory of its own: what follows uses that
// memory, and not what the nodes were made of.
//
// Barriers do not do that on CPUs, where XLA drops them before it fuses operations. Then it cuts the part out of x only
// where the part is gathered, and keeps x until then; and it adds up the outputs of all blocks before this one, in
// every operation that takes their sum (x is one, where blocks have residual connections), and keeps all outputs. So
// this is a conditional, into which XLA fuses nothing, and of which only one branch ever runs: the one that copies
// nothing. XLA cannot know, since ranks tell each other their numbers while the program runs (collective.Rank). It
// builds a graph, and panics without such a mesh axis.
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
