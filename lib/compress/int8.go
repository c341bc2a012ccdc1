package compress

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// Int8 stores integers from -127 to 127 and a float32 scale for each group of elements along the last axis; the last
// group may be smaller, and a group may be larger than the axis. The largest magnitude of a group becomes 127, and the
// error is at most half of a 127th of it. In a group with a NaN or an infinity, all become NaN or infinite. A group
// below 1 is an error. (Groups as in Chen et al. 2021, "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
// Compressed Training", but symmetric around 0 and with 8 bits.)
func Int8(group int) (Codec, error) {
	if group < 1 {
		return nil, fmt.Errorf("compress: Int8 with groups of %d: give at least 1", group)
	}
	return int8s{group}, nil
}

type int8s struct{ group int }

func (c int8s) Name() string { return fmt.Sprintf("int8:%d", c.group) }

// in returns how many elements a group has in a row of n, and how many groups there are.
func (c int8s) in(n int) (group, groups int) {
	group = min(c.group, max(1, n)) // or the row would be padded to it
	return group, (n + group - 1) / group
}

func (c int8s) Bytes(shape shapes.Shape) int64 {
	rows, n := rows(shape)
	_, groups := c.in(n)
	return packing(8).bytes(shape) + int64(rows)*int64(groups)*4
}

func (c int8s) Encode(x *graph.Node) []*graph.Node {
	rows, n := rows(x.Shape())
	g := x.Graph()
	group, groups := c.in(n)
	x = graph.Reshape(padLast(graph.Reshape(keepable32(x), rows, n), groups*group), rows, groups, group)
	magnitude := graph.Where(graph.IsFinite(x), graph.Abs(x), graph.Const(g, float32(math.Inf(1))))
	scale := graph.Mul(graph.ReduceAndKeep(magnitude, graph.ReduceMax, 2), graph.Const(g, float32(1)/127))
	scaled := precision.Round(graph.Div(x, scale), precision.INT8) // NaN, which becomes 0, where the scale is 0
	codes := graph.ConvertDType(graph.Add(scaled, graph.Const(g, float32(128))), dtypes.Uint32)
	codes = graph.SliceAxis(graph.Reshape(codes, rows, groups*group), 1, graph.AxisRange(0, n))
	return []*graph.Node{packing(8).pack(codes), precision.ToBits(graph.Reshape(scale, rows, groups))}
}

func (c int8s) Decode(encoded []*graph.Node, like shapes.Shape) *graph.Node {
	rows, n := rows(like)
	g := encoded[0].Graph()
	group, groups := c.in(n)
	codes := packing(8).unpack(encoded[0], shapes.Make(dtypes.Uint32, rows, n))
	scaled := graph.Sub(graph.ConvertDType(codes, dtypes.Float32), graph.Const(g, float32(128)))
	scale := graph.BroadcastToDims(graph.InsertAxes(precision.FromBits(encoded[1], dtypes.Float32), 2), rows, groups,
		group)
	scale = graph.SliceAxis(graph.Reshape(scale, rows, groups*group), 1, graph.AxisRange(0, n))
	return graph.ConvertDType(graph.Reshape(graph.Mul(scaled, scale), like.Dimensions...), like.DType)
}
