package optim

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Cut is a rank's [Part] of a parameter that is cut along one axis, as in tensor parallelism: the rank has some of the
// axis's indices, and all of the other axes.
//
// If Length is 0, the parts are equal consecutive ranges in the order of the ranks. With Length they may be any indices
// in any order, as in a [params.Cut]. Each index is on at least one rank. Several ranks may have the same index, for
// example key heads in grouped-query attention; they must have the same values, states and gradients for it, and
// compute the same new ones.
//
// An index may also be padding, whose values and gradients the caller has set to 0. The update leaves its values at 0
// (but Adam with an Eps of 0 makes them NaN, as it does with every element that has had no gradient yet). Padding never
// counts, and its states have no meaning.
type Cut struct {
	Axis  int // from 0
	Ranks int // the number of ranks; it divides the axis if Length is 0
	// Length is the number of indices on each rank, including padding and indices that other ranks have too. 0 means
	// the axis divided by Ranks.
	Length int
	// Counted is a vector of Length booleans: which of the rank's indices count in sums over all ranks, so that each
	// index of the full axis counts once. nil counts all. Sum is an all-reduce over the ranks. Both may be nil for
	// optimizers that need no sums over the parameter.
	Counted *graph.Node
	Sum     func(*graph.Node) *graph.Node
}

// CutOf returns the Cut of a rank, without Counted and Sum; nil for nil, which is the full parameter.
func CutOf(c *params.Cut) Part {
	if c == nil {
		return nil
	}
	return Cut{Axis: c.Axis, Ranks: c.Ranks(), Length: c.Length()}
}

func (c Cut) check(full []int) error {
	switch {
	case c.Axis < 0 || c.Axis >= len(full):
		return fmt.Errorf("it is cut along axis %d of the dimensions %v: choose one from 0 to %d", c.Axis, full,
			len(full)-1)
	case c.Ranks < 1 || c.Length == 0 && full[c.Axis]%c.Ranks != 0:
		return fmt.Errorf("axis %d of the dimensions %v is cut in %d: choose a number that divides it", c.Axis, full,
			c.Ranks)
	case c.Length != 0 && c.Ranks*c.Length < full[c.Axis]:
		return fmt.Errorf("axis %d of the dimensions %v is cut for %d ranks with %d indices each: choose enough for "+
			"all, or 0 for equal parts", c.Axis, full, c.Ranks, c.Length)
	}
	return nil
}

func (c Cut) dims(full []int) []int {
	if c.check(full) != nil {
		return full
	}
	part := slices.Clone(full)
	if part[c.Axis] /= c.Ranks; c.Length > 0 {
		part[c.Axis] = c.Length
	}
	return part
}

func (c Cut) joined() int                   { return c.Axis }
func (c Cut) sum(x *graph.Node) *graph.Node { return sumWith(c.Sum, x) }

func (c Cut) clean(x *graph.Node, full []int) *graph.Node {
	if c.Counted == nil {
		return x
	}
	dims := c.dims(full)
	if got := c.Counted.Shape(); got.DType != dtypes.Bool || !slices.Equal(got.Dimensions, dims[c.Axis:c.Axis+1]) {
		panic(fmt.Errorf("optim: the Counted of a part of dimensions %v, cut along axis %d, has shape %s: give a "+
			"vector of %d booleans", dims, c.Axis, got, dims[c.Axis]))
	}
	along := slices.Repeat([]int{1}, len(dims))
	along[c.Axis] = dims[c.Axis]
	counts := graph.BroadcastToDims(graph.Reshape(c.Counted, along...), dims...)
	return graph.Where(counts, x, graph.ZerosLike(x))
}

func (c Cut) fold(x *graph.Node, full []int, axis int) *graph.Node {
	if axis == c.Axis {
		return c.sum(graph.ReduceSum(c.clean(x, full), axis))
	}
	return graph.ReduceSum(x, axis)
}

func (c Cut) folded(axis int) Part {
	switch {
	case axis == c.Axis:
		return fullPart{}
	case axis < c.Axis:
		c.Axis--
	}
	return c
}

func (c Cut) spread(y *graph.Node, full []int, axis int) *graph.Node {
	return graph.BroadcastToDims(graph.InsertAxes(y, axis), c.dims(full)...)
}

func (c Cut) alignsBlocks(full []int, block int) bool {
	return c.Length == 0 && (c.Ranks == 1 || product(full[:c.Axis]) == 1 && product(c.dims(full))%block == 0)
}
