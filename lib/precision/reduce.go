package precision

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// Sum returns the sum over the axes, all if none is given, in x's type; half types are added up in float32.
// It panics if x is no number or has no such axis.
func Sum(x *graph.Node, axes ...int) *graph.Node { return reduce(x, graph.ReduceSum, axes) }

// Mean is the sum of [Sum], divided before it is rounded to x's type, so that it does not overflow.
func Mean(x *graph.Node, axes ...int) *graph.Node { return reduce(x, graph.ReduceMean, axes) }

func reduce(x *graph.Node, by func(x *graph.Node, axes ...int) *graph.Node, axes []int) *graph.Node {
	return graph.ConvertDType(by(Widen(x), axes...), x.DType())
}

// Widen returns x of a half type in float32, and any other x as it is.
func Widen(x *graph.Node) *graph.Node {
	if x.DType().IsHalfPrecision() {
		return graph.ConvertDType(x, dtypes.Float32)
	}
	return x
}
