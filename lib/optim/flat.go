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

// Flat is a run of the elements of a parameter in row-major order, as in ZeRO: a vector of Length elements, of which
// the first is the parameter's element number Offset. What lies beyond the parameter's end is padding; whatever it
// holds does not act on the rest, and its states mean nothing.
//
// All ranks of one program have the same Length and each its own Offset, such as rank·Length.
//
// Sums over rows and columns ([Adafactor]) scatter the elements into all rows or columns of the parameter and sum those
// over the ranks: each rank keeps all of them. The scatter adds in no fixed order on some devices, so the last bits of
// such states may differ from run to run there.
type Flat struct {
	Length int // of the vector on each rank, padding included
	// Offset is an integer scalar; of type int64 where a parameter has 2³¹ elements or more. Sum adds up the ranks'
	// tensors, as an all-reduce does: every rank gets the same. The rules that need no sums over the parameter leave
	// both alone (Adam8bit needs Offset), and then they may be nil.
	Offset *graph.Node
	Sum    func(*graph.Node) *graph.Node
}

// FlatLength is the Length of the flat parts in which so many ranks hold a parameter: its elements divided by the
// ranks, rounded up, so that the last parts may have padding; where a rule keeps one number for a block of elements
// ([Adam8bit]), to whole blocks, so that the parts make exactly the whole's step, and their states are the whole's in
// pieces.
func FlatLength(r Optimizer, param params.Spec, ranks int) int {
	length, unit := (param.Size()+ranks-1)/ranks, max(1, blockOf(r, param))
	return max(1, (length+unit-1)/unit*unit)
}

// blocked is a rule that keeps one number for a block of elements.
type blocked interface {
	block(param params.Spec) int
}

// blockOf is the length of a rule's blocks of a parameter, or 0 if it has none.
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
func (f Flat) folded(int) Part               { return wholePart{} }
func (f Flat) runs(_ []int, block int) bool  { return f.Length%block == 0 }

// at numbers the elements in the whole.
func (f Flat) at() *graph.Node {
	if f.Offset == nil || !f.Offset.IsScalar() || !f.Offset.DType().IsInt() {
		panic(errors.New("optim: this rule needs to know where a flat part begins: set its Offset to an integer scalar"))
	}
	from := graph.ConvertDType(f.Offset, dtypes.Int64) // a parameter may have more than 2³¹ elements
	return graph.Add(graph.Iota(from.Graph(), shapes.Make(dtypes.Int64, f.Length), 0), from)
}

func (f Flat) clean(x *graph.Node, whole []int) *graph.Node {
	at := f.at()
	inside := graph.LessThan(at, graph.Const(at.Graph(), int64(product(whole))))
	return graph.Where(inside, x, graph.ZerosLike(x))
}

func (f Flat) fold(x *graph.Node, whole []int, axis int) *graph.Node {
	dims := slices.Delete(slices.Clone(whole), axis, axis+1)
	sums := graph.Scatter(f.index(whole, axis), f.clean(x, whole), shapes.Make(x.DType(), product(dims)), false, false)
	return graph.Reshape(f.sum(sums), dims...)
}

func (f Flat) spread(y *graph.Node, whole []int, axis int) *graph.Node {
	return graph.Gather(graph.Reshape(y, y.Shape().Size()), f.index(whole, axis))
}

// index says for each element where it goes when the whole is summed over an axis, as Gather and Scatter want it: in a
// whole of dimensions (outer, axis, inner), (o, a, i) goes to (o, i). Padding goes where the last element does.
func (f Flat) index(whole []int, axis int) *graph.Node {
	inner := product(whole[axis+1:])
	at := f.at()
	at = graph.Min(at, graph.Const(at.Graph(), int64(product(whole)-1)))
	c := func(n int) *graph.Node { return graph.Const(at.Graph(), int64(n)) }
	outer := graph.Div(at, c(inner*whole[axis]))
	to := graph.Add(graph.Mul(outer, c(inner)), graph.Mod(at, c(inner)))
	return graph.InsertAxes(to, -1)
}
