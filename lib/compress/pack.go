package compress

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// packing packs codes of this number of bits into uint32 words, as many as fit. It packs along the last axis, so that a
// tensor that is sharded along another axis is packed in place. Of the m words of a row, word i has codes i, i+m, i+2m,
// ….
type packing int

// each is the number of codes in a word.
func (p packing) each() int { return 32 / int(p) }

// words is the number of words for n codes.
func (p packing) words(n int) int { return (n + p.each() - 1) / p.each() }

func (p packing) bytes(shape shapes.Shape) int64 {
	rows, n := rows(shape)
	return int64(rows) * int64(p.words(n)) * 4
}

// pack returns the words (rows, words) of codes, which are below 2^p.
//
// It sums the codes, since XLA stores the result of a sum. It would repeat an elementwise operation for each use of the
// result, and hold the operation's input for it.
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

// shifts returns by how many bits each of the parts (rows, each, words) is shifted in a word.
func (p packing) shifts(parts *graph.Node) *graph.Node {
	return graph.Mul(graph.Iota(parts.Graph(), parts.Shape(), 1), graph.Const(parts.Graph(), uint32(p)))
}

// rows returns the number of rows of a tensor, and the number of elements in each: those of the last axis.
func rows(shape shapes.Shape) (rows, n int) {
	if shape.Rank() == 0 {
		return 1, 1
	}
	n = shape.Dim(-1)
	return shape.Size() / max(1, n), n
}

// padLast pads the last axis of x with zeros to n elements.
func padLast(x *graph.Node, n int) *graph.Node {
	axes := make([]compute.PadAxis, x.Rank())
	axes[x.Rank()-1].End = n - x.Shape().Dim(-1)
	return graph.Pad(x, graph.ScalarZero(x.Graph(), x.DType()), axes...)
}
