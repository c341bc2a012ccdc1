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
