package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Part says which part of a parameter a rank has, for the rules that need sums over the whole: [Cut] or [Flat]; a nil
// Part is the whole. Every element of the parameter is in exactly one rank's part.
type Part interface {
	// check returns an error if a tensor of these dimensions cannot be cut so.
	check(whole []int) error
	// dims are the dimensions of the part.
	dims(whole []int) []int
	// joined is the axis along which the ranks' parts make the whole, or -1 if every rank has the whole.
	joined() int
	// sum adds up the ranks' x.
	sum(x *graph.Node) *graph.Node
	// clean returns the part x with zeros where it has no element of the whole.
	clean(x *graph.Node, whole []int) *graph.Node
	// fold sums the whole over one axis, which goes; folded is the part of the result that this rank has then.
	fold(x *graph.Node, whole []int, axis int) *graph.Node
	folded(axis int) Part
	// spread repeats what fold returned along the axis: it has the dimensions of the part again.
	spread(y *graph.Node, whole []int, axis int) *graph.Node
}

func wholeIfNil(p Part) Part {
	if p == nil {
		return wholePart{}
	}
	return p
}

// wholePart is the part of a rank that has all.
type wholePart struct{}

func (wholePart) check([]int) error                                 { return nil }
func (wholePart) dims(whole []int) []int                            { return whole }
func (wholePart) joined() int                                       { return -1 }
func (wholePart) sum(x *graph.Node) *graph.Node                     { return x }
func (wholePart) clean(x *graph.Node, _ []int) *graph.Node          { return x }
func (wholePart) folded(int) Part                                   { return wholePart{} }
func (wholePart) fold(x *graph.Node, _ []int, axis int) *graph.Node { return graph.ReduceSum(x, axis) }
func (wholePart) spread(y *graph.Node, whole []int, axis int) *graph.Node {
	return graph.BroadcastToDims(graph.InsertAxes(y, axis), whole...)
}

// Cut is one of the equal parts of a parameter along one of its axes, as in tensor parallelism.
type Cut struct {
	Axis  int // from 0
	Ranks int // the number of parts, which divides the axis
	// Sum adds up the ranks' tensors, as an all-reduce does: every rank gets the same. The rules that need no sums over
	// the parameter leave it alone, and then it may be nil.
	Sum func(*graph.Node) *graph.Node
}

func (c Cut) check(whole []int) error {
	switch {
	case c.Axis < 0 || c.Axis >= len(whole):
		return fmt.Errorf("it is cut along axis %d of the dimensions %v: choose one from 0 to %d", c.Axis, whole, len(whole)-1)
	case c.Ranks < 1 || whole[c.Axis]%c.Ranks != 0:
		return fmt.Errorf("axis %d of the dimensions %v is cut in %d: choose a number that divides it", c.Axis, whole, c.Ranks)
	}
	return nil
}

func (c Cut) dims(whole []int) []int {
	if c.check(whole) != nil {
		return whole
	}
	part := slices.Clone(whole)
	part[c.Axis] /= c.Ranks
	return part
}

func (c Cut) joined() int                              { return c.Axis }
func (c Cut) clean(x *graph.Node, _ []int) *graph.Node { return x }
func (c Cut) sum(x *graph.Node) *graph.Node            { return sumWith(c.Sum, x) }

func (c Cut) fold(x *graph.Node, _ []int, axis int) *graph.Node {
	y := graph.ReduceSum(x, axis)
	if axis == c.Axis {
		return c.sum(y)
	}
	return y
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

func sumWith(sum func(*graph.Node) *graph.Node, x *graph.Node) *graph.Node {
	if sum == nil {
		panic(errors.New("optim: this rule needs sums over the ranks: set the Sum of the part, as to an all-reduce"))
	}
	return sum(x)
}

// piece is what a rank has of a tensor.
type piece struct {
	whole []int // the dimensions of the whole tensor
	part  Part
}

func pieceOf(param params.Spec, part Part) piece {
	return piece{param.Shape.Dimensions, wholeIfNil(part)}
}

// total sums x over the whole.
func (p piece) total(x *graph.Node) *graph.Node {
	return p.part.sum(graph.ReduceAllSum(p.part.clean(x, p.whole)))
}

// rms is the root of the mean of the squares of the whole.
func (p piece) rms(x *graph.Node) *graph.Node {
	return graph.Sqrt(graph.DivScalar(p.total(graph.Square(x)), float64(product(p.whole))))
}

// mean is the whole's mean over one axis, of which this rank gets its piece.
func (p piece) mean(x *graph.Node, axis int) *graph.Node {
	return graph.DivScalar(p.part.fold(x, p.whole, axis), float64(p.whole[axis]))
}

// without is this rank's piece of the whole's mean over one axis.
func (p piece) without(axis int) piece {
	return piece{slices.Delete(slices.Clone(p.whole), axis, axis+1), p.part.folded(axis)}
}

// spread repeats a mean along its axis.
func (p piece) spread(mean *graph.Node, axis int) *graph.Node {
	return p.part.spread(mean, p.whole, axis)
}

// state describes a state of this piece's dimensions.
func (p piece) state(param params.Spec, name string, dtype dtypes.DType) State {
	return State{params.New(param.Name+"."+name, dtype, slices.Clone(p.part.dims(p.whole))...), p.part.joined()}
}

// product is the number of elements of a tensor of these dimensions.
func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}
