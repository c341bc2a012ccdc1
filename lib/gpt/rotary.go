package gpt

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// rotaryBase is the base of the angles, as in Su et al. and Llama.
const rotaryBase = 10000

// rotate rotates each pair of features (i, i+D/2) of x (B,T,H,D) by the angle position·rotaryBase^(−2i/D), so that the
// dot product of a query and a key depends on their distance (Su et al. 2021, "RoFormer: Enhanced Transformer with
// Rotary Position Embedding", §3.4; halves paired as in GPT-NeoX and Llama). Positions (T) are integers. It computes in
// float32 and returns x's type. It panics if the shapes do not fit or D is odd.
func rotate(x, positions *graph.Node) *graph.Node {
	s := x.Shape()
	if s.Rank() != 4 || s.Dim(3)%2 != 0 || positions.Rank() != 1 || positions.Shape().Dim(0) != s.Dim(1) {
		panic(fmt.Errorf("gpt: rotary positions of shape %s for %s: use (T) and (B,T,H,D) with an even D",
			positions.Shape(), s))
	}
	half, x32 := s.Dim(3)/2, precision.Widen(x)
	step := -2 * math.Log(rotaryBase) / float64(s.Dim(3))
	// (1,D/2)
	frequency := graph.Exp(graph.MulScalar(graph.Iota(x.Graph(), shapes.Make(x32.DType(), 1, half), 1), step))
	// (T,D/2)
	angle := graph.Mul(graph.InsertAxes(graph.ConvertDType(positions, x32.DType()), -1), frequency)
	// (1,T,1,D/2)
	angle = graph.InsertAxes(angle, 0, 1)
	cos, sin := graph.Cos(angle), graph.Sin(angle)
	a := graph.Slice(x32, graph.AxisRange().Spacer(), graph.AxisRange(0, half))
	b := graph.Slice(x32, graph.AxisRange().Spacer(), graph.AxisRange(half))
	turned := graph.Concatenate([]*graph.Node{
		graph.Sub(graph.Mul(a, cos), graph.Mul(b, sin)),
		graph.Add(graph.Mul(b, cos), graph.Mul(a, sin)),
	}, -1)
	return graph.ConvertDType(turned, x.DType())
}
