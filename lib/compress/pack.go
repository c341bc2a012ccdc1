package compress

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// packing is codes of so many bits, as many in a uint32 as fit. They are packed along the last axis, so that a tensor
// which is split over devices along another is packed where it is. Of the m words of a row, word i has codes i, i+m,
// i+2m, ….
type packing int

// each is how many codes are in a word.
func (p packing) each() int { return 32 / int(p) }

// words is how many words n codes need.
func (p packing) words(n int) int { return (n + p.each() - 1) / p.each() }

func (p packing) bytes(shape shapes.Shape) int64 {
	rows, n := rows(shape)
	return int64(rows) * int64(p.words(n)) * 4
}

// pack returns the words (rows, words) of codes, which are below 2^p.
//
// It adds the codes up, since a sum is something that XLA keeps. An elementwise operation it rather repeats for each
// use of the result, for which it keeps what is to be encoded.
func (p packing) pack(codes *graph.Node) *graph.Node {
	rows, n := rows(codes.Shape())
	words := p.words(n)
	codes = graph.Reshape(graph.ConvertDType(codes, dtypes.Uint32), rows, n)
	parts := graph.Reshape(padLast(codes, words*p.each()), rows, p.each(), words)
	return graph.ReduceSum(graph.BitwiseShiftLeft(parts, p.shifts(parts)), 1)
}

// unpack returns the codes in uint32, of a shape's dimensions.
func (p packing) unpack(words *graph.Node, of shapes.Shape) *graph.Node {
	rows, n := rows(of)
	m := p.words(n)
	parts := graph.BroadcastToDims(graph.InsertAxes(words, 1), rows, p.each(), m)
	mask := graph.Const(words.Graph(), uint32(1)<<p-1)
	codes := graph.BitwiseAnd(graph.BitwiseShiftRightLogical(parts, p.shifts(parts)), mask)
	codes = graph.SliceAxis(graph.Reshape(codes, rows, p.each()*m), 1, graph.AxisRange(0, n))
	return graph.Reshape(codes, of.Dimensions...)
}

// shifts is by how many bits each of the parts (rows, each, words) lies from a word's end.
func (p packing) shifts(parts *graph.Node) *graph.Node {
	return graph.Mul(graph.Iota(parts.Graph(), parts.Shape(), 1), graph.Const(parts.Graph(), uint32(p)))
}

// rows is how many rows a tensor has, and how many elements each: those of the last axis.
func rows(shape shapes.Shape) (rows, n int) {
	if shape.Rank() == 0 {
		return 1, 1
	}
	n = shape.Dim(-1)
	return shape.Size() / max(1, n), n
}

// padLast returns x with zeros after the last axis's elements, so that these are n.
func padLast(x *graph.Node, n int) *graph.Node {
	axes := make([]compute.PadAxis, x.Rank())
	axes[x.Rank()-1].End = n - x.Shape().Dim(-1)
	return graph.Pad(x, graph.ScalarZero(x.Graph(), x.DType()), axes...)
}
