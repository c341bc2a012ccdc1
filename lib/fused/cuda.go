package fused

import (
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/xla"
)

// geluOnGPU are the CUDA kernels of a type: GELU with a bias, and its gradient.
type geluOnGPU struct{ forward, backward *xla.Kernel }

// onGPU has the types of CUDA kernels.
var onGPU = map[dtypes.DType]geluOnGPU{
	dtypes.Float32: {
		cudaKernel("shardbook_cheap_cuda_gelu", "bias_gelu<float>").Checked(
			func() (operands, want []*tensors.Tensor) {
				return list(matrix(-1, 20, -20, 0), row(1, 2, 3, 0)), list(matrix(0, 22, 0, 0), vector())
			}),
		cudaKernel("shardbook_cheap_cuda_gelu_gradient", "bias_gelu_gradient<float>").Checked(
			func() (operands, want []*tensors.Tensor) {
				return list(matrix(-1, 20, -20, 0), row(1, 2, 3, 0), matrix(1, 3, 5, 7)),
					list(matrix(0.5, 3, 0, 3.5), tensors.FromFlatDataAndDimensions(repeated(1, 6, 0, 7), 1, 32))
			}),
	},
	dtypes.BFloat16: {
		cudaKernel("shardbook_cheap_cuda_gelu_bf16", "bias_gelu<__nv_bfloat16>"),
		cudaKernel("shardbook_cheap_cuda_gelu_gradient_bf16", "bias_gelu_gradient<__nv_bfloat16>"),
	},
}

// cudaKernel makes a kernel of a function in kernel.CUDA.
func cudaKernel(name, function string) *xla.Kernel {
	return xla.NewCUDAKernel(name, func() (unsafe.Pointer, error) { return cudaHandler(function) })
}

// callsOnGPU returns the kernels if they compute for these nodes.
func callsOnGPU(x, bias *graph.Node) (k geluOnGPU, are bool) {
	k, are = onGPU[x.DType()]
	are = are && bias.DType() == x.DType() && x.Shape().Size() > 0
	return k, are && k.forward.Replaces(x.Graph()) && k.backward.Replaces(x.Graph())
}

// rowsOfSlice is how many rows a block of the gradient sums, unless there are very many.
const (
	rowsOfSlice = 64
	mostSlices  = 256
)

// biasGELU is BiasGELU by CUDA kernels. That of the gradient sums slices of the rows for the bias; XLA adds these.
func (k geluOnGPU) biasGELU(x, bias *graph.Node) *graph.Node {
	same, columns := x.Shape(), bias.Shape().Size()
	slices := min((same.Size()/columns+rowsOfSlice-1)/rowsOfSlice, mostSlices)
	return autodiff.Custom([]*graph.Node{x, bias},
		func(in []*graph.Node) []*graph.Node { return call(k.forward, []shapes.Shape{same, nothing}, in...) },
		func(in, _, v []*graph.Node) []*graph.Node {
			sums := shapes.Make(dtypes.Float32, slices, columns)
			d := call(k.backward, []shapes.Shape{same, sums}, in[0], in[1], v[0])
			return []*graph.Node{d[0], graph.ConvertDType(graph.ReduceSum(d[1], 0), bias.DType())}
		})[0]
}
