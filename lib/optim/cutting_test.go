package optim_test

import (
	"fmt"
	"iter"
	"math"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// lockstep builds what n ranks compute into one graph: each runs up to a sum, where it waits for all others.
func lockstep(n int, build func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node) [][]*graph.Node {
	results := make([][]*graph.Node, n)
	var total *graph.Node // of the sum that all have come to
	ranks := make([]func() (*graph.Node, bool), n)
	for rank := range n {
		next, stop := iter.Pull(func(yield func(*graph.Node) bool) {
			results[rank] = build(rank, func(x *graph.Node) *graph.Node {
				yield(x)
				return total
			})
		})
		defer stop()
		ranks[rank] = next
	}
	for {
		var sum *graph.Node
		came := 0
		for _, next := range ranks {
			if x, ok := next(); ok {
				if came++; came == 1 {
					sum = x
				} else {
					sum = graph.Add(sum, x)
				}
			}
		}
		if came == 0 {
			return results
		}
		if came != n {
			panic(fmt.Errorf("%d of %d ranks come to a sum", came, n))
		}
		total = sum
	}
}

// cutting is a way to cut a parameter.
type cutting struct {
	dims  []int
	ranks int
	axis  int // -1: flat
	// of the flat part on each rank
	length int
	// each rank's indices along the axis, unless they are an equal range
	index [][]int
}

// The flat parts and the cut rows have full blocks of 4, the block of allOptimizers' Adam8bit.
var cuttings = []cutting{
	{[]int{7, 11}, 2, -1, 40, nil},
	{[]int{7, 11}, 3, -1, 28, nil},
	{[]int{7, 11}, 5, -1, 16, nil},
	{[]int{3}, 3, -1, 4, nil}, // two ranks have nothing but padding
	{[]int{}, 2, -1, 4, nil},
	{[]int{2, 3, 5}, 3, -1, 12, nil},
	{[]int{6, 20}, 3, 0, 0, nil},
	{[]int{6, 20}, 5, 1, 0, nil},
	{[]int{8}, 2, 0, 0, nil},
	{[]int{2, 3, 8}, 2, 0, 0, nil},
	{[]int{2, 3, 8}, 3, 1, 0, nil},
	{[]int{2, 3, 8}, 2, 2, 0, nil},
	{[]int{6, 20}, 1, 0, 0, nil},
	// Copies, padding, and another order.
	{[]int{5, 3}, 3, 0, 0, [][]int{{4, 0, 1}, {1, -1, 2}, {1, 2, 3}}},
	{[]int{6, 5}, 2, 1, 0, [][]int{{0, 3, 1, -1}, {-1, 1, 4, 2}}},
	{[]int{7}, 3, 0, 0, [][]int{{6, 5, -1}, {0, 1, 2}, {4, 2, 3}}},
	{[]int{2, 3, 5}, 2, 0, 0, [][]int{{1, -1}, {1, 0}}},
	{[]int{2, 3, 5}, 4, 1, 0, [][]int{{2}, {0}, {0}, {1}}},
	{[]int{2, 3, 5}, 2, 2, 0, [][]int{{0, 1, 2}, {-1, 3, 4}}},
}

func (c cutting) spec() params.Spec { return params.New("w", dtypes.Float32, c.dims...) }

func (c cutting) cut() *params.Cut { return &params.Cut{Axis: c.axis, Index: c.index} }

// part is a rank's part as it is listed; onRank is one with what updates need.
func (c cutting) part() optim.Part {
	switch {
	case c.axis < 0:
		return optim.Flat{Length: c.length}
	case c.index != nil:
		return optim.Cut{Axis: c.axis, Ranks: c.ranks, Length: len(c.index[0])}
	}
	return optim.Cut{Axis: c.axis, Ranks: c.ranks}
}

func (c cutting) onRank(g *graph.Graph, rank int, sum func(*graph.Node) *graph.Node) optim.Part {
	switch part := c.part().(type) {
	case optim.Flat:
		part.Offset, part.Sum = graph.Const(g, int32(rank*c.length)), sum
		return part
	case optim.Cut:
		if part.Sum = sum; c.index != nil {
			part.Counted = graph.Const(g, c.cut().Counted(rank))
		}
		return part
	}
	return nil
}

// of cuts a rank's part out of the full array. Padding is NaN in flat parts, and otherwise 0.
func (c cutting) of(whole *graph.Node, rank int) *graph.Node {
	if c.index != nil {
		return pick(whole, c.axis, c.index[rank])
	}
	if c.axis < 0 {
		n := c.spec().Size()
		flat := graph.Pad(graph.Reshape(whole, n), graph.Const(whole.Graph(), float32(math.NaN())),
			compute.PadAxis{End: c.ranks*c.length - n})
		return graph.Slice(flat, graph.AxisRange(rank*c.length, (rank+1)*c.length))
	}
	specs := make([]graph.SliceAxisSpec, len(c.dims))
	for i := range specs {
		specs[i] = graph.AxisRange()
	}
	size := c.dims[c.axis] / c.ranks
	specs[c.axis] = graph.AxisRange(rank*size, (rank+1)*size)
	return graph.Slice(whole, specs...)
}

// pick returns an axis with other indices; −1 gives zeros.
func pick(x *graph.Node, axis int, index []int) *graph.Node {
	picked := make([]*graph.Node, len(index))
	for k, i := range index {
		specs := make([]graph.SliceAxisSpec, x.Rank())
		for a := range specs {
			specs[a] = graph.AxisRange()
		}
		specs[axis] = graph.AxisElem(max(i, 0))
		if picked[k] = graph.Slice(x, specs...); i < 0 {
			picked[k] = graph.ZerosLike(picked[k])
		}
	}
	return graph.Concatenate(picked, axis)
}

// join concatenates the ranks' parts of an array, cut to its elements.
func join(parts []*graph.Node, axis int, whole *graph.Node) *graph.Node {
	n := whole.Shape().Size()
	joined := graph.Concatenate(parts, axis)
	flat := graph.Reshape(joined, joined.Shape().Size())
	return graph.Reshape(graph.Slice(flat, graph.AxisRange(0, n)), whole.Shape().Dimensions...)
}

// trained makes a step of a part for each gradient, starting from zero states, and returns the parameter and the
// states.
func trained(opt optim.Optimizer, tree params.Tree, part optim.Part, w *graph.Node, grads []*graph.Node) []*graph.Node {
	ws, s := []*graph.Node{w}, []*graph.Node(nil)
	for _, state := range opt.States(tree[0], part) {
		s = append(s, graph.Zeros(w.Graph(), state.Shape))
	}
	for i, grad := range grads {
		ws, s = optim.ApplyToParts(opt, tree, []optim.Part{part}, ws, []*graph.Node{grad}, s,
			graph.Const(w.Graph(), int32(i+1)))
	}
	return append(ws, s...)
}
