package tensor

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
)

// SumCopies is for a parameter of which several ranks have copies of some indices, as of key and value heads where
// there are fewer of them than ranks ([Heads]). It returns x, this rank's part along an axis (−1 is the last), and its
// gradient has at each index that several ranks have the sum over these, so that the copies stay equal. It is x itself
// where the cut is nil or no index is with several ranks.
//
// The backward pass has one all-reduce, in x's type, of as many columns as there are different indices with several
// ranks. It panics if the cut is not for this group or does not fit x.
func (t Group) SumCopies(x *graph.Node, axis int, cut *params.Cut) *graph.Node {
	n := t.Size(x.Graph())
	if cut == nil || n == 1 {
		return x
	}
	check(axis >= -x.Rank() && axis < x.Rank(), "SumCopies: %s has no axis %d", x.Shape(), axis)
	axis = (axis + x.Rank()) % x.Rank()
	check(cut.Ranks() == n, "SumCopies: a cut for %d ranks in a group of %d: make one for as many", cut.Ranks(), n)
	check(x.Shape().Dim(axis) == cut.Length(), "SumCopies: axis %d of %s, of which a rank of the cut "+
		"has %d: give its part",
		axis, x.Shape(), cut.Length())
	where, which := copies(cut)
	if len(where[0]) == 0 {
		return x
	}
	return graph.IdentityWithCustomGradient(x, func(_, v *graph.Node) *graph.Node {
		g := v.Graph()
		mine := func(table [][]int32) *graph.Node { // this rank's row
			return graph.Reshape(collective.Part(graph.Const(g, table), 0, t.Axis), -1)
		}
		v = swapped(v, axis)
		sums := collective.AllReduce(rowsAt(v, mine(where)), collective.Sum, t.Axis)
		at := mine(which)
		has := graph.GreaterOrEqual(at, graph.Const(g, int32(0)))
		return swapped(graph.Where(broadcastLeft(has, v), rowsAt(sums, at), v), axis)
	})
}

// copies says which indices several ranks have. where has for each rank, and each such index, its place on that rank,
// or −1; which has for each rank and place the number of the index among these, or −1.
func copies(cut *params.Cut) (where, which [][]int32) {
	holders := map[int]int{}
	for _, indices := range cut.Index {
		for _, i := range indices {
			if i >= 0 {
				holders[i]++
			}
		}
	}
	numbers := map[int]int32{} // of indices with several holders, in the order in which ranks list them
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

// rowsAt picks rows of x along axis 0; those at −1 are zeros.
func rowsAt(x, places *graph.Node) *graph.Node {
	zero := graph.Const(x.Graph(), int32(0))
	rows := graph.Gather(x, graph.ExpandAxes(graph.Max(places, zero), -1))
	return graph.Where(broadcastLeft(graph.GreaterOrEqual(places, zero), rows), rows, graph.ZerosLike(rows))
}

// broadcastLeft repeats x, whose axes are the first of like's, along the others.
func broadcastLeft(x, like *graph.Node) *graph.Node {
	dims := slices.Repeat([]int{1}, like.Rank())
	copy(dims, x.Shape().Dimensions)
	return graph.BroadcastToDims(graph.Reshape(x, dims...), like.Shape().Dimensions...)
}

// swapped exchanges an axis with the first one.
func swapped(x *graph.Node, axis int) *graph.Node {
	if axis == 0 {
		return x
	}
	return graph.Transpose(x, 0, axis)
}
