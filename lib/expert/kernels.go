package expert

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/expert/internal/kernel"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// The kernels, each with the canary that checks it whenever a backend is opened: groups of two rows, of one and of
// none, and a row that no group has.
var (
	byMatrices = xla.NewKernel(kernel.ByMatrices()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(array(4, 2)(1, 2, 3, 4, 5, 6, 7, 8), array(2, 2, 1)(1, 10, 2, 3), counts(2, 1)),
			list(array(4, 1)(21, 43, 28, 0), array(0)())
	})
	byTransposed = xla.NewKernel(kernel.ByTransposed()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(array(4, 1)(1, 2, 3, 4), array(2, 2, 1)(1, 10, 2, 3), counts(2, 1)),
			list(array(4, 2)(1, 10, 2, 20, 6, 9, 0, 0), array(0)())
	})
	byRows = xla.NewKernel(kernel.ByRows()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(array(4, 2)(1, 2, 3, 4, 5, 6, 7, 8), array(4, 1)(1, 10, 100, 1000), counts(2, 0, 1)),
			list(array(3, 2, 1)(31, 42, 0, 0, 500, 600), array(0)())
	})
)

func list(all ...*tensors.Tensor) []*tensors.Tensor { return all }

func array(dims ...int) func(values ...float32) *tensors.Tensor {
	return func(values ...float32) *tensors.Tensor { return tensors.FromFlatDataAndDimensions(values, dims...) }
}

func counts(all ...int32) *tensors.Tensor { return tensors.FromFlatDataAndDimensions(all, len(all)) }

// callsKernels reports whether the kernels compute a grouped matmul of x and w.
func callsKernels(x, w *graph.Node, matmul precision.Matmul) bool {
	switch x.DType() {
	case dtypes.Float32, dtypes.Float16, dtypes.BFloat16:
	default:
		return false
	}
	g := x.Graph()
	return matmul == (precision.Matmul{}) && x.Shape().Size() > 0 && w.Shape().Size() > 0 && byMatrices.Replaces(g) &&
		byTransposed.Replaces(g) && byRows.Replaces(g)
}

// call calls a kernel where callsKernels is true. The second result is there since GoMLX drops calls with one under
// Checkpoint.
func call(k *xla.Kernel, result shapes.Shape, operands ...*graph.Node) *graph.Node {
	return k.Call(operands, []shapes.Shape{result, shapes.Make(dtypes.Float32, 0)}, nil)[0]
}
