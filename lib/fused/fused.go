// Package fused has what surrounds the matmuls of a Transformer, each operation and its gradient as a C kernel that XLA
// calls on CPUs. A kernel saves only its inputs for the gradient, where XLA saves arrays that it computes between, and
// runs on all of XLA's threads. On other devices, and for other types than float32, they are GoMLX's operations with
// GoMLX's gradients. On GPUs, bias with GELU has CUDA kernels for float32 and bfloat16 too, for comparison with what
// XLA makes of these operations: where the backend was opened with [xla.CUDAKernels].
package fused

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// calls reports whether kernels, an operation and its gradient, compute for these nodes.
func calls(forward, backward *xla.Kernel, in ...*graph.Node) bool {
	for _, x := range in {
		if x.DType() != dtypes.Float32 || x.Shape().Size() == 0 {
			return false
		}
	}
	g := in[0].Graph()
	return forward.Replaces(g) && backward.Replaces(g)
}

// call calls a kernel where calls is true.
func call(k *xla.Kernel, results []shapes.Shape, operands ...*graph.Node) []*graph.Node {
	return k.Call(operands, results, nil)
}

// nothing is the second result of a kernel with one: GoMLX drops calls with one result under Checkpoint.
var nothing = shapes.Make(dtypes.Float32, 0)

// BiasGELU returns [GELU] of x + bias, for x (…,C) and a bias (C). The bias's gradient accumulates in float32, or
// float64 for float64. It panics if the shapes do not fit.
func BiasGELU(x, bias *graph.Node) *graph.Node {
	if k, are := callsOnGPU(x, bias); are {
		return k.biasGELU(x, bias)
	}
	if !calls(gelu, geluGradient, x, bias) {
		return GELU(AddBias(x, bias))
	}
	same, column := x.Shape(), bias.Shape()
	return autodiff.Custom([]*graph.Node{x, bias},
		func(in []*graph.Node) []*graph.Node { return call(gelu, []shapes.Shape{same, nothing}, in...) },
		func(in, _, v []*graph.Node) []*graph.Node {
			return call(geluGradient, []shapes.Shape{same, column}, in[0], in[1], v[0])
		})[0]
}

// AddBias returns x + bias, for x (…,C) and a bias (C), whose gradient accumulates as that of [BiasGELU]. It panics if
// the shapes do not fit.
func AddBias(x, bias *graph.Node) *graph.Node {
	b := graph.BroadcastToDims(graph.ExpandLeftToRank(precision.Widen(bias), x.Rank()), x.Shape().Dimensions...)
	return graph.Add(x, graph.ConvertDType(b, x.DType()))
}

// GELU returns ½x(1 + tanh(√(2/π)(x + 0.044715x³))), the tanh form of the Gaussian error linear unit (Hendrycks &
// Gimpel 2016, "Gaussian Error Linear Units", §2), elementwise for x of any shape. It panics if x is not a float.
func GELU(x *graph.Node) *graph.Node {
	cubic := graph.Mul(x, graph.AddScalar(graph.MulScalar(graph.Square(x), 0.044715), 1)) // x + 0.044715x³
	return graph.Mul(graph.MulScalar(x, 0.5), graph.AddScalar(graph.Tanh(graph.MulScalar(cubic, math.Sqrt(2/math.Pi))),
		1))
}

// CrossEntropy returns −log softmax(logits)[target] (…) for logits (…,V) and targets (…) of any integer type, in the
// logits' type. A target that is not in 0 to V−1 has loss and gradient 0. For the gradient the kernel saves the logits
// and two numbers per row. It panics if the shapes do not fit.
func CrossEntropy(logits, targets *graph.Node) *graph.Node {
	columns := logits.Shape().Dim(-1)
	if !calls(crossEntropy, crossEntropyGradient, logits) {
		hit := graph.OneHot(targets, columns, logits.DType())
		return graph.Neg(graph.ReduceSum(graph.Mul(hit, graph.LogSoftmax(logits, -1)), -1))
	}
	same := logits.Shape()
	row := rows(same)
	return autodiff.Custom([]*graph.Node{logits, in32(targets, columns)},
		func(in []*graph.Node) []*graph.Node {
			return call(crossEntropy, []shapes.Shape{row, row, row}, in...)
		},
		func(in, out, v []*graph.Node) []*graph.Node {
			d := call(crossEntropyGradient, []shapes.Shape{same, nothing}, in[0], in[1], out[1], out[2], v[0])
			return []*graph.Node{d[0], nil}
		})[0]
}

// rows is the shape of a number for each row.
func rows(matrix shapes.Shape) shapes.Shape {
	return shapes.Make(dtypes.Float32, matrix.Dimensions[:matrix.Rank()-1]...)
}

// in32 returns integers as int32, those that are not in 0 to n−1 as others that are not.
func in32(x *graph.Node, n int) *graph.Node {
	switch x.DType() {
	case dtypes.Int64:
		x = graph.MaxScalar(graph.MinScalar(x, n), -1)
	case dtypes.Uint32, dtypes.Uint64:
		x = graph.MinScalar(x, n)
	}
	return graph.ConvertDType(x, dtypes.Int32)
}
