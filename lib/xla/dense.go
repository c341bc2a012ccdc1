package xla

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	xlashapes "github.com/gomlx/go-xla/types/shapes"

	"github.com/shardbook/shardbook/lib/xla/internal/dense"
)

// On CPUs, large matmuls and sums over leading axes are calls of C kernels: XLA's matmuls are slower, it transposes the
// operands of a gradient's in memory, and it sums on one thread.

// matmuls are the kernels by whether A and B are stored transposed.
var matmuls = func() (all [2][2]*Kernel) {
	for a := range all {
		for b := range all[a] {
			all[a][b] = NewKernel(dense.Matmul(a == 1, b == 1))
		}
	}
	return all
}()

var columnSumsKernel = NewKernel(dense.ColumnSums())

const (
	// leastMatmul is the least number of multiplications of a matmul for which a call pays, and leastRows the least
	// number of rows of each operand: with fewer, packing costs more than it saves. Measured with 1 to 2048 rows.
	leastMatmul = 1 << 18
	leastRows   = 8

	// leastSummed elements and leastColumns are the least for which a sum of columns pays.
	leastSummed  = 1 << 15
	leastColumns = 16
)

// dense reports whether the function's operations may be calls of the kernels: not where the compiler shards the
// program, which it could not do with the calls.
func (f *function) dense() bool {
	b := f.builder
	return !b.auto && b.backend.kernels && dense.Bits() > 128
}

// matrix is an operand of a matmul: a matrix with the contracted axes as its last ones, or as its first ones.
type matrix struct {
	value value
	free  []int // dimensions
	depth int   // the number of elements along the contracted axes
	first bool  // the contracted axes come first
}

// asMatrix returns an operand with its contracted axes, unless they are neither the first nor the last, in order.
func asMatrix(v value, contracted []int) (m matrix, ok bool) {
	dims := hloValue(v).Shape().Dimensions
	n, k := len(dims), len(contracted)
	if k == 0 || k == n {
		return m, false
	}
	first, last := true, true
	for i, axis := range contracted {
		first, last = first && axis == i, last && axis == n-k+i
	}
	m = matrix{v, dims[:n-k], 1, first}
	summed := dims[n-k:]
	if first {
		m.free, summed = dims[k:], dims[:k]
	}
	for _, d := range summed {
		m.depth *= d
	}
	return m, first || last
}

// rows is the number of elements along the other axes.
func (m matrix) rows() int {
	n := 1
	for _, d := range m.free {
		n *= d
	}
	return n
}

// product is a matmul by a kernel.
type product struct {
	x, y   matrix
	result dtypes.DType
}

// matmul writes a matmul as a call of a kernel, if there is one for it and it is large enough.
func (f *function) matmul(lhs value, lhsContracted, lhsBatch []int, rhs value, rhsContracted []int,
	config compute.DotGeneralConfig) (result value, ok bool, err error) {
	if !f.dense() || len(lhsBatch) > 0 {
		return nil, false, nil
	}
	operands := f.here(lhs, rhs)
	t := hloValue(lhs).Shape().DType
	p := product{result: t}
	if config.OutputDType != dtypes.InvalidDType {
		p.result = config.OutputDType
	}
	known := t == dtypes.Float32 || t == dtypes.Float16 || t == dtypes.BFloat16
	float32s := config.AccumulatorDType == dtypes.InvalidDType || config.AccumulatorDType == dtypes.Float32
	if !known || !float32s || hloValue(rhs).Shape().DType != t || p.result != t && p.result != dtypes.Float32 {
		return nil, false, nil
	}
	var left, right bool
	p.x, left = asMatrix(operands[0], lhsContracted)
	p.y, right = asMatrix(operands[1], rhsContracted)
	if m, n := p.x.rows(), p.y.rows(); !left || !right || min(m, n) < leastRows || m*n*p.x.depth < leastMatmul {
		return nil, false, nil
	}
	result, err = f.product(p)
	return result, err == nil && result != nil, err
}

// product writes the call; nil if the plugin knows no kernels.
func (f *function) product(p product) (value, error) {
	at := func(transposed bool) int {
		if transposed {
			return 1
		}
		return 0
	}
	kernel := matmuls[at(p.x.first)][at(!p.y.first)]
	result, err := f.kernelCall(kernel, p.result, slices.Concat(p.x.free, p.y.free), p.x.value, p.y.value)
	if result != nil {
		f.builder.products[hloValue(result)] = p
	}
	return result, err
}

// kernelCall writes a call with one result; nil if the plugin knows no kernels. It is written below GoMLX, which would
// drop such a call under Checkpoint.
func (f *function) kernelCall(k *Kernel, of dtypes.DType, dims []int, operands ...value) (value, error) {
	if !k.knownTo(f.builder.backend) {
		return nil, nil
	}
	results, err := k.call(operands, []xlashapes.Shape{xlashapes.Make(of, dims...)})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// Transpose permutes axes. The transposition of a matmul, which the gradient of a linear layer's weights has, is the
// matmul of the operands in the other order; XLA drops the first one if nothing else uses it.
func (f *function) Transpose(x value, axes ...int) (value, error) {
	p, ok := f.builder.products[hloValue(x)]
	if n := len(axes); ok && n == len(p.x.free)+len(p.y.free) && functionOf(hloValue(x)) == hloFunction(f.Function) {
		swapped := true
		for i, axis := range axes {
			swapped = swapped && axis == (i+len(p.x.free))%n
		}
		if swapped {
			return f.product(product{p.y, p.x, p.result})
		}
	}
	return f.Function.Transpose(x, axes...)
}

// ReduceSum sums over axes; large sums over leading ones by a kernel.
func (f *function) ReduceSum(x value, axes ...int) (value, error) {
	shape := hloValue(x).Shape()
	leading, columns := len(axes), 1
	ok := f.dense() && shape.DType == dtypes.Float32 && leading > 0 && leading < len(shape.Dimensions)
	for axis := range shape.Dimensions {
		if axis < leading {
			ok = ok && slices.Contains(axes, axis)
		} else {
			columns *= shape.Dimensions[axis]
		}
	}
	if ok && columns >= leastColumns && shape.Size() >= leastSummed {
		sums, err := f.kernelCall(columnSumsKernel, shape.DType, shape.Dimensions[leading:], f.here(x)...)
		if sums != nil || err != nil {
			return sums, err
		}
	}
	return f.Function.ReduceSum(x, axes...)
}
