package optim

import (
	"errors"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Part is a rank's part of a parameter, with what optimizers need to sum over all of it: [Cut] or [Flat]; nil is the
// full parameter. Every element is in at least one rank's part and counts in sums on exactly one rank. Ranks that have
// the same element compute the same for it.
type Part interface {
	// check returns an error if a tensor of these full dimensions cannot be cut so.
	check(full []int) error
	// dims are the dimensions of the part.
	dims(full []int) []int
	// joined is the axis along which the ranks' parts are joined, or -1 if every rank has the full tensor.
	joined() int
	// sum is an all-reduce of x over the ranks.
	sum(x *graph.Node) *graph.Node
	// clean returns the part x with zeros for the elements that this rank does not count.
	clean(x *graph.Node, full []int) *graph.Node
	// alignsBlocks reports whether the parts, one after another, are the full tensor in row-major order, and each but
	// the last consists of full blocks.
	alignsBlocks(full []int, block int) bool
	// fold sums the full tensor over one axis, which disappears; folded is this rank's part of the result.
	fold(x *graph.Node, full []int, axis int) *graph.Node
	folded(axis int) Part
	// spread broadcasts the result of fold along the axis again, to the dimensions of the part.
	spread(y *graph.Node, full []int, axis int) *graph.Node
}

func fullIfNil(p Part) Part {
	if p == nil {
		return fullPart{}
	}
	return p
}

// fullPart is the part of a rank that has the full tensor.
type fullPart struct{}

func (fullPart) check([]int) error                                 { return nil }
func (fullPart) dims(full []int) []int                             { return full }
func (fullPart) joined() int                                       { return -1 }
func (fullPart) sum(x *graph.Node) *graph.Node                     { return x }
func (fullPart) clean(x *graph.Node, _ []int) *graph.Node          { return x }
func (fullPart) alignsBlocks([]int, int) bool                      { return true }
func (fullPart) folded(int) Part                                   { return fullPart{} }
func (fullPart) fold(x *graph.Node, _ []int, axis int) *graph.Node { return graph.ReduceSum(x, axis) }
func (fullPart) spread(y *graph.Node, full []int, axis int) *graph.Node {
	return graph.BroadcastToDims(graph.InsertAxes(y, axis), full...)
}

func sumWith(sum func(*graph.Node) *graph.Node, x *graph.Node) *graph.Node {
	if sum == nil {
		panic(errors.New("optim: this optimizer sums over the ranks: set the Sum of the part to an all-reduce"))
	}
	return sum(x)
}

// Joins reports whether the states of a parameter's parts, joined as [State].Axis says, are the states of the full
// parameter. Only for [Adam8bit] they may not be: if its blocks differ in the parts, its states can be joined and cut
// again only by parts of the same kind. Optimizers of other packages are assumed to join.
func Joins(r Optimizer, param params.Spec, part Part) bool {
	block := blockOf(r, param)
	return block == 0 || fullIfNil(part).alignsBlocks(param.Shape.Dimensions, block)
}

// piece is a rank's part of a tensor.
type piece struct {
	full []int // the dimensions of the full tensor
	part Part
}

func pieceOf(param params.Spec, part Part) piece {
	return piece{param.Shape.Dimensions, fullIfNil(part)}
}

// total sums x over the full tensor.
func (p piece) total(x *graph.Node) *graph.Node {
	return p.part.sum(graph.ReduceAllSum(p.part.clean(x, p.full)))
}

// rms is the root mean square over the full tensor.
func (p piece) rms(x *graph.Node) *graph.Node {
	return graph.Sqrt(graph.DivScalar(p.total(graph.Square(x)), float64(product(p.full))))
}

// mean is this rank's piece of the full tensor's mean over one axis.
func (p piece) mean(x *graph.Node, axis int) *graph.Node {
	return graph.DivScalar(p.part.fold(x, p.full, axis), float64(p.full[axis]))
}

// without describes the result of mean.
func (p piece) without(axis int) piece {
	return piece{slices.Delete(slices.Clone(p.full), axis, axis+1), p.part.folded(axis)}
}

// spread broadcasts a mean along its axis.
func (p piece) spread(mean *graph.Node, axis int) *graph.Node {
	return p.part.spread(mean, p.full, axis)
}

// state describes a state of this piece's dimensions.
func (p piece) state(param params.Spec, name string, dtype dtypes.DType) State {
	return State{params.New(param.Name+"."+name, dtype, slices.Clone(p.part.dims(p.full))...), p.part.joined()}
}

// product is the number of elements of a tensor of these dimensions.
func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}
