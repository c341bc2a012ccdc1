package xla

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/plugin"
)

// HasTF32 reports whether float32 matmuls compute in TF32, in graphs of a backend of [Open]: with the option [TF32], on
// GPUs of compute capability 8.0 or later (Ampere).
func HasTF32(g *graph.Graph) bool {
	b, ours := g.Backend().(*Backend)
	return ours && b.Backend.(*goxla.Backend).DotGeneralUseTF32 && slices.Compare(b.capability[:], []int{8, 0}) >= 0
}

// DotGeneral is a matmul. On CPUs, XLA takes several times as long for x·wᵀ with a small x as for w·xᵀ
// (docs/upstream.md, "small matmuls"), so it is written as the latter and transposed. The gradient of a linear layer's
// input is such a matmul.
func (f *function) DotGeneral(lhs compute.Value, lhsContracted, lhsBatch []int, rhs compute.Value,
	rhsContracted, rhsBatch []int, config compute.DotGeneralConfig) (compute.Value, error) {
	if result, ok, err := f.matmul(lhs, lhsContracted, lhsBatch, rhs, rhsContracted, config); ok || err != nil {
		return result, err
	}
	if f.parent != nil || f.builder.backend.info.Platform != plugin.CPU ||
		!fewRows(lhs, lhsContracted, lhsBatch, rhs, rhsContracted) {
		return f.Function.DotGeneral(lhs, lhsContracted, lhsBatch, rhs, rhsContracted, rhsBatch, config)
	}
	swapped, err := f.Function.DotGeneral(rhs, rhsContracted, rhsBatch, lhs, lhsContracted, lhsBatch, config)
	if err != nil {
		return nil, err
	}
	// XLA would fold the transposition into the matmul again; it does not look through a barrier of several values.
	behind, err := f.Function.OptimizationBarrier(swapped, lhs)
	if err != nil {
		return nil, err
	}
	var axes []int // back to the order of the result
	for i := range len(hloValue(lhs).Shape().Dimensions) - 1 {
		axes = append(axes, i+1)
	}
	return f.Function.Transpose(behind[0], append(axes, 0)...)
}

// fewRows reports whether a matmul is x·wᵀ with a large matrix w and so few rows of x that the other form is faster.
// The bounds were measured, with matrices from 256×256 to 4096×1024 and 8 to 1024 rows.
func fewRows(x compute.Value, xContracted, xBatch []int, w compute.Value, wContracted []int) bool {
	const large, share = 512 * 512, 4
	a, b := hloValue(x).Shape(), hloValue(w).Shape()
	last := len(a.Dimensions) - 1
	if a.DType != dtypes.Float32 || b.DType != dtypes.Float32 || len(xBatch) > 0 || len(b.Dimensions) != 2 ||
		last < 1 || len(xContracted) != 1 || xContracted[0] != last || len(wContracted) != 1 || wContracted[0] != 1 {
		return false
	}
	rows := 1
	for _, d := range a.Dimensions[:last] {
		rows *= d
	}
	return b.Dimensions[0]*b.Dimensions[1] >= large && share*rows <= min(b.Dimensions[0], b.Dimensions[1])
}
