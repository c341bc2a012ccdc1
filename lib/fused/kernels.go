package fused

import (
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/fused/internal/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

// The kernels, each with the canary that checks it whenever a backend is opened. Their numbers have exact results:
// sigmoids of 0, and of numbers for which they are 0 or 1; logits of which one is far above the others.
var (
	gelu = xla.NewKernel(kernel.GELU()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(matrix(-1, 20, -20, 0), row(1, 2, 3, 0)), list(matrix(0, 22, 0, 0), vector())
	})
	geluGradient = xla.NewKernel(kernel.GELUGradient()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(matrix(-1, 20, -20, 0), row(1, 2, 3, 0), matrix(1, 3, 5, 7)),
			list(matrix(0.5, 3, 0, 3.5), row(1, 6, 0, 7))
	})
	crossEntropy = xla.NewKernel(kernel.CrossEntropy()).Checked(func() (operands, want []*tensors.Tensor) {
		return list(spikes(500, 500, 0), tensors.FromValue([]int32{0, 1})),
			list(vector(0, 500), vector(500, 500), vector(1, 1))
	})
	crossEntropyGradient = xla.NewKernel(kernel.CrossEntropyGradient()).Checked(func() (operands,
		want []*tensors.Tensor) {
		targets := tensors.FromValue([]int32{1, -1})
		return list(spikes(500, 500, 0), targets, vector(500, 500), vector(1, 1), vector(3, 3)),
			list(spikes(3, 0, -3), vector())
	})
)

func list(all ...*tensors.Tensor) []*tensors.Tensor { return all }

func vector(values ...float32) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(values, len(values))
}

// row is a row of 32 numbers: four, repeated.
func row(four ...float32) *tensors.Tensor { return vector(repeated(four...)...) }

func repeated(four ...float32) []float32 { return slices.Repeat(four, 8) }

// matrix has two such rows.
func matrix(four ...float32) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(slices.Repeat(four, 16), 2, 32)
}

// spikes has two rows of 32 zeros, but for the first number of each row, and the second of the first row.
func spikes(first, second, next float32) *tensors.Tensor {
	all := make([]float32, 64)
	all[0], all[32], all[1] = first, second, next
	return tensors.FromFlatDataAndDimensions(all, 2, 32)
}
