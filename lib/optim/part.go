package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
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

// Flat is a rank's [Part] of a flattened parameter, as in ZeRO: Length consecutive elements in row-major order,
// starting at element Offset. Elements beyond the parameter's end are padding: their values affect nothing, and their
// states have no meaning. All ranks of a program have the same Length and each its own Offset, such as rank·Length.
//
// Row and column sums ([Adafactor]) scatter the elements into all rows or columns of the parameter and all-reduce
// those; every rank stores all of them. The scatter adds in no fixed order on some devices, so the last bits of such
// states may differ from run to run there.
type Flat struct {
	Length int // of the vector on each rank, including padding
	// Offset is an integer scalar, of type int64 for a parameter with 2³¹ elements or more. Sum is an all-reduce over
	// the ranks. Both may be nil for optimizers that need no sums over the parameter (Adam8bit needs Offset).
	Offset *graph.Node
	Sum    func(*graph.Node) *graph.Node
}

// FlatLength returns the Length of the flat parts of a parameter over n ranks: its elements divided by n and rounded
// up, so that the last parts may have padding. For an optimizer that quantizes blocks ([Adam8bit]) it is rounded up to
// a multiple of the block, so that the shards compute exactly the step of the full parameter.
func FlatLength(r Optimizer, param params.Spec, ranks int) int {
	length, unit := (param.Size()+ranks-1)/ranks, max(1, blockOf(r, param))
	return max(1, (length+unit-1)/unit*unit)
}

// blocked is an optimizer that stores one number for a block of elements.
type blocked interface {
	block(param params.Spec) int
}

// blockOf returns the length of an optimizer's blocks of a parameter, or 0 if it has none.
func blockOf(r Optimizer, param params.Spec) int {
	if b, ok := r.(blocked); ok {
		return b.block(param)
	}
	return 0
}

func (f Flat) check([]int) error {
	if f.Length < 1 {
		return fmt.Errorf("it has %d elements: choose at least 1", f.Length)
	}
	return nil
}

func (f Flat) dims([]int) []int              { return []int{max(1, f.Length)} }
func (f Flat) joined() int                   { return 0 }
func (f Flat) sum(x *graph.Node) *graph.Node { return sumWith(f.Sum, x) }
func (f Flat) folded(int) Part               { return fullPart{} }

func (f Flat) alignsBlocks(_ []int, block int) bool { return f.Length%block == 0 }

// at returns the index of each element in the flattened parameter.
func (f Flat) at() *graph.Node {
	if f.Offset == nil || !f.Offset.IsScalar() || !f.Offset.DType().IsInt() {
		panic(errors.New("optim: this optimizer needs a flat part's first element: set Offset to an integer scalar"))
	}
	from := graph.ConvertDType(f.Offset, dtypes.Int64) // a parameter may have more than 2³¹ elements
	return graph.Add(graph.Iota(from.Graph(), shapes.Make(dtypes.Int64, f.Length), 0), from)
}

func (f Flat) clean(x *graph.Node, full []int) *graph.Node {
	at := f.at()
	inside := graph.LessThan(at, graph.Const(at.Graph(), int64(product(full))))
	return graph.Where(inside, x, graph.ZerosLike(x))
}

func (f Flat) fold(x *graph.Node, full []int, axis int) *graph.Node {
	dims := slices.Delete(slices.Clone(full), axis, axis+1)
	sums := graph.Scatter(f.index(full, axis), f.clean(x, full), shapes.Make(x.DType(), product(dims)), false, false)
	return graph.Reshape(f.sum(sums), dims...)
}

func (f Flat) spread(y *graph.Node, full []int, axis int) *graph.Node {
	return graph.Gather(graph.Reshape(y, y.Shape().Size()), f.index(full, axis))
}

// index returns, for each element, its index in the result of summing the full parameter over an axis, for Gather and
// Scatter: with full dimensions (outer, axis, inner), (o, a, i) goes to (o, i). Padding gets the last element's index.
func (f Flat) index(full []int, axis int) *graph.Node {
	inner := product(full[axis+1:])
	at := f.at()
	at = graph.Min(at, graph.Const(at.Graph(), int64(product(full)-1)))
	c := func(n int) *graph.Node { return graph.Const(at.Graph(), int64(n)) }
	outer := graph.Div(at, c(inner*full[axis]))
	to := graph.Add(graph.Mul(outer, c(inner)), graph.Mod(at, c(inner)))
	return graph.InsertAxes(to, -1)
}
