package optim

import (
	"math"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// DynamicMap returns the 256 numbers, in ascending order, that dynamic (tree) quantisation has codes for: signed ones
// from about −0.993 to 1, or unsigned ones from 0 to 1 (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep
// Learning", §3.1; the unsigned form is Dettmers et al. 2022, §2.2). It is the table that bitsandbytes makes with
// create_dynamic_map.
//
// Seven powers of ten, 10⁻⁶ to 1, each have twice as many numbers as the one below, which are the middles of equal
// parts of its interval from a tenth of it to itself. With 0 and 1 they are 256. A signed table has both signs of each,
// and half as many of them in each power.
func DynamicMap(signed bool) [256]float32 {
	table := []float32{0, 1}
	for i := range 7 {
		parts := 2 << i
		if signed {
			parts = 1 << i
		}
		for k := range parts {
			middle := 0.1 + 0.9*(float64(k)+0.5)/float64(parts)
			x := float32(middle * math.Pow10(i-6))
			table = append(table, x)
			if signed {
				table = append(table, -x)
			}
		}
	}
	slices.Sort(table)
	return [256]float32(table)
}

// blocks is how many blocks n elements are in.
func blocks(n, block int) int { return (n + block - 1) / block }

// encode quantises x: uint8 codes of x's dimensions, and the largest absolute value of each block. In a block with a
// NaN or an infinity, all become NaN or an infinity.
func encode(x *graph.Node, table [256]float32, block int) (codes, largest *graph.Node) {
	n := x.Shape().Size()
	b := blocks(n, block)
	flat := graph.Pad(graph.Reshape(x, n), graph.ScalarZero(x.Graph(), x.DType()), compute.PadAxis{End: b*block - n})
	rows := graph.Reshape(flat, b, block)
	largest = graph.ReduceMax(graph.Abs(rows), 1)
	scale := graph.Where(graph.Equal(largest, graph.ZerosLike(largest)), graph.OnesLike(largest), largest)
	share := graph.Div(rows, graph.InsertAxes(scale, 1))
	share = graph.Slice(graph.Reshape(share, b*block), graph.AxisRange(0, n))
	codes = graph.ConvertDType(nearest(share, table), dtypes.Uint8)
	return graph.Reshape(codes, x.Shape().Dimensions...), largest
}

// decode is what encode's results stand for, in the type of the largest values.
func decode(codes, largest *graph.Node, table [256]float32, block int) *graph.Node {
	n := codes.Shape().Size()
	g, b := codes.Graph(), blocks(n, block)
	scale := graph.BroadcastToDims(graph.InsertAxes(largest, 1), b, block)
	scale = graph.Slice(graph.Reshape(scale, b*block), graph.AxisRange(0, n))
	at := graph.ConvertDType(graph.Reshape(codes, n, 1), dtypes.Int32)
	share := graph.Gather(graph.ConvertDType(graph.Const(g, table[:]), largest.DType()), at)
	return graph.Reshape(graph.Mul(share, scale), codes.Shape().Dimensions...)
}

// nearest returns the place in the ascending table of the number nearest to each x, of rank 1; the lower one of two. It
// is how many of the 255 middles between neighbours are below x, and a binary search finds it bit by bit.
func nearest(x *graph.Node, table [256]float32) *graph.Node {
	middles := make([]float32, 255)
	for i := range middles {
		middles[i] = float32((float64(table[i]) + float64(table[i+1])) / 2)
	}
	g := x.Graph()
	among := graph.ConvertDType(graph.Const(g, middles), x.DType())
	below := graph.Zeros(g, shapes.Make(dtypes.Int32, x.Shape().Size()))
	for bit := 128; bit > 0; bit /= 2 {
		more := graph.AddScalar(below, bit)
		middle := graph.Gather(among, graph.InsertAxes(graph.AddScalar(more, -1), -1))
		below = graph.Where(graph.LessThan(middle, x), more, below)
	}
	return below
}
