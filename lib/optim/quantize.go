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

// encode quantises the matrix x, each row in blocks of its own: uint8 codes of x's dimensions, and for each row the largest
// absolute value of each block. In a block with a NaN or an infinity, all become NaN or an infinity.
func encode(x *graph.Node, table [256]float32, block int) (codes, largest *graph.Node) {
	rows, n := x.Shape().Dim(0), x.Shape().Dim(1)
	b := blocks(n, block)
	padded := graph.Pad(x, graph.ScalarZero(x.Graph(), x.DType()), compute.PadAxis{}, compute.PadAxis{End: b*block - n})
	each := graph.Reshape(padded, rows, b, block)
	largest = graph.ReduceMax(graph.Abs(each), 2)
	scale := graph.Where(graph.Equal(largest, graph.ZerosLike(largest)), graph.OnesLike(largest), largest)
	share := graph.Div(each, graph.InsertAxes(scale, 2))
	share = graph.Slice(graph.Reshape(share, rows, b*block), graph.AxisRange(), graph.AxisRange(0, n))
	codes = graph.ConvertDType(nearest(graph.Reshape(share, rows*n), table), dtypes.Uint8)
	return graph.Reshape(codes, rows, n), largest
}

// decode is what encode's results stand for, in the type of the largest values, which may be of any dimensions.
func decode(codes, largest *graph.Node, table [256]float32, block int) *graph.Node {
	rows, n := codes.Shape().Dim(0), codes.Shape().Dim(1)
	g, b := codes.Graph(), blocks(n, block)
	scale := graph.BroadcastToDims(graph.Reshape(largest, rows, b, 1), rows, b, block)
	scale = graph.Slice(graph.Reshape(scale, rows, b*block), graph.AxisRange(), graph.AxisRange(0, n))
	at := graph.ConvertDType(graph.Reshape(codes, rows*n, 1), dtypes.Int32)
	share := graph.Gather(graph.ConvertDType(graph.Const(g, table[:]), largest.DType()), at)
	return graph.Mul(graph.Reshape(share, rows, n), scale)
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
