package optim

import (
	"errors"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Part says which part of a parameter a rank has, for the rules that need sums over the whole: [Cut] or [Flat]; a nil
// Part is the whole. Every element of the parameter is in at least one rank's part, and counts in sums with exactly one
// rank. Ranks that have the same element compute the same for it.
type Part interface {
	// check returns an error if a tensor of these dimensions cannot be cut so.
	check(whole []int) error
	// dims are the dimensions of the part.
	dims(whole []int) []int
	// joined is the axis along which the ranks' parts make the whole, or -1 if every rank has the whole.
	joined() int
	// sum adds up the ranks' x.
	sum(x *graph.Node) *graph.Node
	// clean returns the part x with zeros where no element of the whole counts with this rank.
	clean(x *graph.Node, whole []int) *graph.Node
	// runs returns whether the parts, one after another, are the whole in row-major order, and each but the last has
	// whole blocks of so many elements.
	runs(whole []int, block int) bool
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
func (wholePart) runs([]int, int) bool                              { return true }
func (wholePart) folded(int) Part                                   { return wholePart{} }
func (wholePart) fold(x *graph.Node, _ []int, axis int) *graph.Node { return graph.ReduceSum(x, axis) }
func (wholePart) spread(y *graph.Node, whole []int, axis int) *graph.Node {
	return graph.BroadcastToDims(graph.InsertAxes(y, axis), whole...)
}

func sumWith(sum func(*graph.Node) *graph.Node, x *graph.Node) *graph.Node {
	if sum == nil {
		panic(errors.New("optim: this rule needs sums over the ranks: set the Sum of the part, as to an all-reduce"))
	}
	return sum(x)
}

// Joins returns whether the states of all parts of a parameter, joined as [State].Axis says, are those that the rule
// lists for the whole. It is so but for [Adam8bit]: its blocks may lie otherwise in the parts, and then its codes and
// scales can be joined and cut again by parts of the same kind alone. Rules from outside this package are taken at
// their word.
func Joins(r Optimizer, param params.Spec, part Part) bool {
	block := blockOf(r, param)
	return block == 0 || wholeIfNil(part).runs(param.Shape.Dimensions, block)
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
