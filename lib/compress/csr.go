package compress

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// columns is the length of a sparse row, so that a column index fits a byte (Gist's "narrow value optimization").
const columns = 256

// CSR stores the elements that are not 0, each with its column in rows of 256 as a byte, and where each row ends
// (compressed sparse rows: Gist's "sparse storage, dense compute"). It is lossless; only +0 is left out.
//
// Shapes in a graph do not depend on values, so there is always room for the same fraction of the elements, the
// capacity. If more elements are not 0, all decode to NaN. A capacity that is not above 0 and at most 1 is an error.
// Above [BreakEven] CSR needs more memory than Dense.
func CSR(capacity float64) (Codec, error) {
	if !(capacity > 0 && capacity <= 1) {
		return nil, fmt.Errorf("compress: CSR with a capacity of %g: give one above 0 and at most 1", capacity)
	}
	return csr{capacity}, nil
}

// BreakEven returns the fraction of nonzero elements from which CSR needs as much memory as the elements themselves, of
// the given number of bytes each: 0.797 for float32 (4), 0.661 for half types (2).
func BreakEven(bytes int) float64 { return (float64(bytes) - 4.0/columns) / float64(bytes+1) }

type csr struct{ capacity float64 }

func (c csr) Name() string { return fmt.Sprintf("csr:%g", c.capacity) }

// room returns the number of elements, of n, that there is room for.
func (c csr) room(n int) int { return min(n, int(math.Ceil(c.capacity*float64(n)))) }

// csrRows returns the number of sparse rows of n elements.
func csrRows(n int) int { return (n + columns - 1) / columns }

func (c csr) Bytes(shape shapes.Shape) int64 {
	n := shape.Size()
	room := c.room(n)
	return int64(room)*int64(shape.DType.Size()) + int64(packing(8).words(room))*4 + int64(csrRows(n))*4
}

// Encode finds, for each entry of the list of nonzero elements, the element with that many nonzero ones before it. It
// searches, since XLA scatters one element after another on CPUs.
func (c csr) Encode(x *graph.Node) []*graph.Node {
	g, n := x.Graph(), x.Shape().Size()
	rows, room := csrRows(n), c.room(n)
	if n > math.MaxInt32-columns {
		panic(fmt.Errorf("compress: a tensor of %d elements is too large for CSR, which counts in int32: split it", n))
	}
	values := padLast(graph.Reshape(precision.ToBits(keepable(x)), n), rows*columns)
	some := graph.ConvertDType(graph.NotEqual(values, graph.ZerosLike(values)), dtypes.Int32)
	rank := graph.CumSum(graph.Reshape(some, rows, columns), 1)
	ends := graph.CumSum(graph.Reshape(graph.SliceAxis(rank, 1, graph.AxisElem(columns-1)), rows), 0)
	rank = graph.Reshape(graph.Add(rank, graph.InsertAxes(starts(ends), 1)), rows*columns)

	at := search(ends, rows*columns, []int{room}, func(at *graph.Node) *graph.Node {
		return graph.LessOrEqual(pick(rank, at), graph.Iota(at.Graph(), at.Shape(), 0))
	})
	at = graph.Min(at, graph.Const(g, int32(rows*columns-1))) // for unused room
	column := graph.BitwiseAnd(at, graph.Const(g, int32(columns-1)))
	return []*graph.Node{pick(values, at), packing(8).pack(column), graph.ConvertDType(ends, dtypes.Uint32)}
}

// Decode searches each row for each column.
func (c csr) Decode(codes []*graph.Node, like shapes.Shape) *graph.Node {
	n := like.Size()
	rows, room := csrRows(n), c.room(n)
	values, ends := codes[0], graph.ConvertDType(codes[2], dtypes.Int32)
	column := graph.ConvertDType(packing(8).unpack(codes[1], shapes.Make(dtypes.Uint32, room)), dtypes.Int32)
	entry := func(at *graph.Node) (place, isThere *graph.Node) { // of each row (rows, columns)
		place = graph.Add(at, graph.InsertAxes(starts(ends), 1))
		isThere = graph.LessThan(place, graph.InsertAxes(ends, 1))
		return graph.Min(place, graph.Const(at.Graph(), int32(room-1))), isThere
	}
	wanted := func(at *graph.Node) *graph.Node { return graph.Iota(at.Graph(), at.Shape(), 1) }
	at := search(ends, columns, []int{rows, columns}, func(at *graph.Node) *graph.Node {
		place, isThere := entry(at)
		return graph.And(isThere, graph.LessThan(pick(column, place), wanted(at)))
	})
	place, isThere := entry(at)
	found := graph.And(isThere, graph.Equal(pick(column, place), wanted(at)))
	x := graph.Where(found, pick(values, place), graph.ScalarZero(values.Graph(), values.DType()))
	x = graph.Slice(graph.Reshape(x, rows*columns), graph.AxisRange(0, n))
	x = precision.FromBits(graph.Reshape(x, like.Dimensions...), like.DType)

	total := graph.Reshape(graph.Slice(ends, graph.AxisElem(rows-1)))
	fits := graph.LessOrEqual(total, graph.Const(x.Graph(), int32(room)))
	return graph.Where(graph.BroadcastToDims(fits, like.Dimensions...), x,
		graph.Scalar(x.Graph(), like.DType, math.NaN()))
}

// starts returns where rows with these ends start.
func starts(ends *graph.Node) *graph.Node {
	first := graph.Const(ends.Graph(), []int32{0})
	return graph.Concatenate([]*graph.Node{first, graph.Slice(ends, graph.AxisRange(0, ends.Shape().Dim(0)-1))}, 0)
}

// search returns, for each element of an array, the number of entries of an ascending list that are below the element's
// target. below says it of the entries at given indices, one per element. The search waits for ready.
//
// It is a binary search, bit by bit. It is a loop because otherwise XLA would recompute each step for each use of its
// result, 2ⁿ times in all. Without ready XLA would allocate the loop's memory at the start of the program.
func search(ready *graph.Node, size int, dimensions []int, below func(at *graph.Node) *graph.Node) *graph.Node {
	g := ready.Graph()
	zeros := graph.Zeros(g, shapes.Make(dtypes.Int32, dimensions...))
	top := int32(1) << (bits.Len(uint(size)) - 1)
	state := []*graph.Node{graph.Const(g, top), after([]*graph.Node{zeros}, []*graph.Node{ready})[0]}
	return xla.While(state,
		func(s []*graph.Node) *graph.Node { return graph.GreaterThan(s[0], graph.ZerosLike(s[0])) },
		func(s []*graph.Node) []*graph.Node {
			bit, count := s[0], s[1]
			number := func(n int32) *graph.Node { return graph.Const(bit.Graph(), n) }
			more := graph.Add(count, bit)
			at := graph.Min(graph.Sub(more, number(1)), number(int32(size-1)))
			more = graph.Where(graph.And(graph.LessOrEqual(more, number(int32(size))), below(at)), more, count)
			return []*graph.Node{graph.BitwiseShiftRightLogical(bit, number(1)), more}
		})[1]
}

// pick returns the entries of a list at indices.
func pick(list, at *graph.Node) *graph.Node { return graph.Gather(list, graph.InsertAxes(at, -1)) }
