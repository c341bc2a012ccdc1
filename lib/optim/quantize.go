package optim

import (
	"math"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// DynamicMap returns the 256 code values of dynamic (tree) quantization in ascending order: signed from about −0.993 to
// 1, or unsigned from 0 to 1 (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning", §3.1; unsigned:
// Dettmers et al. 2022, §2.2). It equals bitsandbytes' create_dynamic_map.
//
// Besides 0 and 1 there are seven intervals, each from a tenth of a power of ten, 10⁻⁶ to 1, to that power. Each is
// divided into twice as many equal parts as the one below, and the values are the middles of the parts. A signed map
// has half as many parts, and both signs of each value.
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

// blocks returns the number of blocks that n elements are in.
func blocks(n, block int) int { return (n + block - 1) / block }

// encode quantizes x to uint8 codes of x's dimensions, and the largest absolute value of each block. In a block with a
// NaN or an infinity, all elements decode to NaN or an infinity.
func encode(x *graph.Node, table [256]float32, block int) (codes, largest *graph.Node) {
	n := x.Shape().Size()
	b := blocks(n, block)
	flat := graph.Pad(graph.Reshape(x, n), graph.ScalarZero(x.Graph(), x.DType()), compute.PadAxis{End: b*block - n})
	rows := graph.Reshape(flat, b, block)
	largest = graph.ReduceMax(graph.Abs(rows), 1)
	scale := graph.Where(graph.Equal(largest, graph.ZerosLike(largest)), graph.OnesLike(largest), largest)
	scaled := graph.Div(rows, graph.InsertAxes(scale, 1))
	scaled = graph.Slice(graph.Reshape(scaled, b*block), graph.AxisRange(0, n))
	codes = graph.ConvertDType(nearest(scaled, table), dtypes.Uint8)
	return graph.Reshape(codes, x.Shape().Dimensions...), largest
}

// decode is the inverse of encode, in the type of the largest values.
func decode(codes, largest *graph.Node, table [256]float32, block int) *graph.Node {
	n := codes.Shape().Size()
	g, b := codes.Graph(), blocks(n, block)
	scale := graph.BroadcastToDims(graph.InsertAxes(largest, 1), b, block)
	scale = graph.Slice(graph.Reshape(scale, b*block), graph.AxisRange(0, n))
	at := graph.ConvertDType(graph.Reshape(codes, n, 1), dtypes.Int32)
	scaled := graph.Gather(graph.ConvertDType(graph.Const(g, table[:]), largest.DType()), at)
	return graph.Reshape(graph.Mul(scaled, scale), codes.Shape().Dimensions...)
}

// nearest returns, for each x of a vector, the index of the nearest number in the ascending table; the lower one of
// two. That is the number of the 255 midpoints of neighbours below x, which a binary search finds bit by bit.
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
