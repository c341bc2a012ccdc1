package optim

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Cut is one of the parts of a parameter along one of its axes, as in tensor parallelism: the rank has some of the
// axis's indices, and all along the other axes.
//
// With Ranks alone the parts are equal runs in the order of the ranks. With Length they may be any indices in any
// order, as those of a [params.Cut]: each index is with at least one rank, and where several ranks have it, as the
// heads of keys that groups of queries share, all of them compute the same new values and states. They must then have
// the same values and states before, and the same gradient.
//
// An index of a rank may also be padding, whose values and gradients the caller has set to 0. The update leaves the
// values 0 (but with an Eps of 0 Adam and its kin make them NaN, as they do with any element that has had no gradient
// yet). Padding never counts; its states mean nothing.
type Cut struct {
	Axis  int // from 0
	Ranks int // the number of parts, which divides the axis if Length is 0
	// Length is that of the axis on each rank, with padding and what other ranks have too; 0 is the Ranks-th part.
	Length int
	// Counted says which of the rank's indices count in sums over all ranks, so that each index of the whole counts
	// once: a vector of booleans as long as the axis on the rank; nil is all. Sum adds up the ranks' tensors, as an
	// all-reduce does: every rank gets the same. The rules that need no sums over the parameter leave both alone, and
	// then they may be nil.
	Counted *graph.Node
	Sum     func(*graph.Node) *graph.Node
}

// CutOf is the part that a rank of a cut has, without Counted and Sum; nil, the whole, of nil.
func CutOf(c *params.Cut) Part {
	if c == nil {
		return nil
	}
	return Cut{Axis: c.Axis, Ranks: c.Ranks(), Length: c.Length()}
}

func (c Cut) check(whole []int) error {
	switch {
	case c.Axis < 0 || c.Axis >= len(whole):
		return fmt.Errorf("it is cut along axis %d of the dimensions %v: choose one from 0 to %d", c.Axis, whole,
			len(whole)-1)
	case c.Ranks < 1 || c.Length == 0 && whole[c.Axis]%c.Ranks != 0:
		return fmt.Errorf("axis %d of the dimensions %v is cut in %d: choose a number that divides it", c.Axis, whole,
			c.Ranks)
	case c.Length != 0 && c.Ranks*c.Length < whole[c.Axis]:
		return fmt.Errorf("axis %d of the dimensions %v is cut for %d ranks with %d indices each: choose enough for "+
			"all, or 0 for equal parts",
			c.Axis, whole, c.Ranks, c.Length)
	}
	return nil
}

func (c Cut) dims(whole []int) []int {
	if c.check(whole) != nil {
		return whole
	}
	part := slices.Clone(whole)
	if part[c.Axis] /= c.Ranks; c.Length > 0 {
		part[c.Axis] = c.Length
	}
	return part
}

func (c Cut) joined() int                   { return c.Axis }
func (c Cut) sum(x *graph.Node) *graph.Node { return sumWith(c.Sum, x) }

func (c Cut) clean(x *graph.Node, whole []int) *graph.Node {
	if c.Counted == nil {
		return x
	}
	dims := c.dims(whole)
	if got := c.Counted.Shape(); got.DType != dtypes.Bool || !slices.Equal(got.Dimensions, dims[c.Axis:c.Axis+1]) {
		panic(fmt.Errorf("optim: the Counted of a part of dimensions %v, cut along axis %d, has shape %s: give a "+
			"vector of %d booleans",
			dims, c.Axis, got, dims[c.Axis]))
	}
	along := slices.Repeat([]int{1}, len(dims))
	along[c.Axis] = dims[c.Axis]
	counts := graph.BroadcastToDims(graph.Reshape(c.Counted, along...), dims...)
	return graph.Where(counts, x, graph.ZerosLike(x))
}

func (c Cut) fold(x *graph.Node, whole []int, axis int) *graph.Node {
	if axis == c.Axis {
		return c.sum(graph.ReduceSum(c.clean(x, whole), axis))
	}
	return graph.ReduceSum(x, axis)
}

func (c Cut) folded(axis int) Part {
	switch {
	case axis == c.Axis:
		return wholePart{}
	case axis < c.Axis:
		c.Axis--
	}
	return c
}

func (c Cut) spread(y *graph.Node, whole []int, axis int) *graph.Node {
	return graph.BroadcastToDims(graph.InsertAxes(y, axis), c.dims(whole)...)
}

func (c Cut) runs(whole []int, block int) bool {
	return c.Length == 0 && (c.Ranks == 1 || product(whole[:c.Axis]) == 1 && product(c.dims(whole))%block == 0)
}
