package precision

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// Sum returns the sum over the axes, or all axes if none is given, in x's type; half types are accumulated in float32.
// It panics if x is not a number or lacks an axis.
func Sum(x *graph.Node, axes ...int) *graph.Node { return reduce(x, graph.ReduceSum, axes) }

// Mean is like [Sum], but divides before it rounds to x's type, so that it does not overflow.
func Mean(x *graph.Node, axes ...int) *graph.Node { return reduce(x, graph.ReduceMean, axes) }

func reduce(x *graph.Node, by func(x *graph.Node, axes ...int) *graph.Node, axes []int) *graph.Node {
	return graph.ConvertDType(by(Widen(x), axes...), x.DType())
}

// Widen converts half types to float32, and returns other types unchanged.
func Widen(x *graph.Node) *graph.Node {
	if x.DType().IsHalfPrecision() {
		return graph.ConvertDType(x, dtypes.Float32)
	}
	return x
}
