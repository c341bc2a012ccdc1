package tensor

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
)

// SumCopies sums the gradients of a parameter whose indices are partly replicated on several ranks, such as key and
// value heads when there are fewer heads than ranks ([Heads]), so that the replicas stay equal. It returns x, the
// rank's shard along an axis (−1 is the last); the gradient at each replicated index is the sum over the ranks that
// have it. It returns x unchanged if the cut is nil or no index is replicated.
//
// The backward pass has one all-reduce, in x's type, of the replicated columns. It panics if the cut is not for this
// group or does not match x.
func (t Group) SumCopies(x *graph.Node, axis int, cut *params.Cut) *graph.Node {
	n := t.Size(x.Graph())
	if cut == nil || n == 1 {
		return x
	}
	check(axis >= -x.Rank() && axis < x.Rank(), "SumCopies: %s has no axis %d", x.Shape(), axis)
	axis = (axis + x.Rank()) % x.Rank()
	check(cut.Ranks() == n, "SumCopies: the cut is for %d ranks and the group has %d", cut.Ranks(), n)
	check(x.Shape().Dim(axis) == cut.Length(), "SumCopies: x has shape %s, but a rank's shard along axis %d has "+
		"length %d", x.Shape(), axis, cut.Length())
	where, which := replicated(cut)
	if len(where[0]) == 0 {
		return x
	}
	return graph.IdentityWithCustomGradient(x, func(_, v *graph.Node) *graph.Node {
		g := v.Graph()
		mine := func(table [][]int32) *graph.Node { // the rank's row
			return graph.Reshape(collective.Part(graph.Const(g, table), 0, t.Axis), -1)
		}
		v = swapped(v, axis)
		sums := collective.AllReduce(rowsAt(v, mine(where)), collective.Sum, t.Axis)
		at := mine(which)
		has := graph.GreaterOrEqual(at, graph.Const(g, int32(0)))
		return swapped(graph.Where(broadcastLeft(has, v), rowsAt(sums, at), v), axis)
	})
}

// replicated numbers the indices that several ranks have. where[rank][number] is the position of that index in the
// rank's shard, or −1; which[rank][position] is the number of the index at a position, or −1.
func replicated(cut *params.Cut) (where, which [][]int32) {
	holders := map[int]int{}
	for _, indices := range cut.Index {
		for _, i := range indices {
			if i >= 0 {
				holders[i]++
			}
		}
	}
	numbers := map[int]int32{} // of the replicated indices, in the order in which ranks list them
	for _, indices := range cut.Index {
		for _, i := range indices {
			if _, known := numbers[i]; !known && holders[i] > 1 {
				numbers[i] = int32(len(numbers))
			}
		}
	}
	where, which = make([][]int32, cut.Ranks()), make([][]int32, cut.Ranks())
	for r, indices := range cut.Index {
		where[r], which[r] = make([]int32, len(numbers)), make([]int32, len(indices))
		for number := range where[r] {
			where[r][number] = -1
		}
		for place, i := range indices {
			which[r][place] = -1
			if number, several := numbers[i]; several {
				where[r][number], which[r][place] = int32(place), number
			}
		}
	}
	return where, which
}

// rowsAt gathers rows of x along axis 0, with zeros for −1.
func rowsAt(x, places *graph.Node) *graph.Node {
	zero := graph.Const(x.Graph(), int32(0))
	rows := graph.Gather(x, graph.ExpandAxes(graph.Max(places, zero), -1))
	return graph.Where(broadcastLeft(graph.GreaterOrEqual(places, zero), rows), rows, graph.ZerosLike(rows))
}

// broadcastLeft broadcasts x, whose axes are the first of like's, to like's shape.
func broadcastLeft(x, like *graph.Node) *graph.Node {
	dims := slices.Repeat([]int{1}, like.Rank())
	copy(dims, x.Shape().Dimensions)
	return graph.BroadcastToDims(graph.Reshape(x, dims...), like.Shape().Dimensions...)
}

// swapped transposes an axis with the first one.
func swapped(x *graph.Node, axis int) *graph.Node {
	if axis == 0 {
		return x
	}
	return graph.Transpose(x, 0, axis)
}
