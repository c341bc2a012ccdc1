package flash

import (
	"github.com/gomlx/gomlx/core/graph"
)

// span is an axis cut into blocks of equal size. If that does not divide the axis, the last block overlaps the one
// before, and the overlap must not count twice.
type span struct{ length, block, count int }

func newSpan(length, size int) span {
	size = min(size, length)
	count := (length + size - 1) / size
	return span{length, (length + count - 1) / count, count}
}

func (s span) divides() bool { return s.count*s.block == s.length }

// start returns the first index of block i.
func (s span) start(i *graph.Node) *graph.Node {
	return graph.Min(graph.MulScalar(i, s.block), integer(i, s.length-s.block))
}

// indices returns the indices of each block, (count, block).
func (s span) indices() [][]int32 {
	all := make([][]int32, s.count)
	for i := range all {
		all[i] = make([]int32, s.block)
		for j := range all[i] {
			all[i][j] = int32(min(i*s.block, s.length-s.block) + j)
		}
	}
	return all
}

// part returns a block of axis 1 of x.
func part(x, start *graph.Node, length int) *graph.Node {
	sizes := x.Shape().Clone().Dimensions
	sizes[1] = length
	return graph.DynamicSlice(x, startsAt(x, start), sizes)
}

// put returns x with a block of axis 1 replaced.
func put(x, block, start *graph.Node) *graph.Node {
	return graph.DynamicUpdateSlice(x, graph.ConvertDType(block, x.DType()), startsAt(x, start))
}

func startsAt(x, start *graph.Node) []*graph.Node {
	starts := make([]*graph.Node, x.Rank())
	for i := range starts {
		starts[i] = integer(start, 0)
	}
	starts[1] = start
	return starts
}

func integer(like *graph.Node, i int) *graph.Node { return graph.Const(like.Graph(), int32(i)) }
