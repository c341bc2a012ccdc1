package dense_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/xla/internal/dense"
)

// widths are the vectors' bits on this machine.
func widths(t *testing.T) (all []int) {
	t.Helper()
	widest := dense.Bits()
	t.Cleanup(func() { dense.Limit(512) })
	for bits := 128; bits <= widest; bits *= 2 {
		all = append(all, bits)
	}
	return all
}

// multiplication is a matmul to test.
type multiplication struct {
	m, n, k                  int
	aTransposed, bTransposed bool
	operands, result         dtypes.DType
	bias, atStart            bool
}

// check compares a kernel's matmul, between pages that it must not touch, with sums in float64.
func (c multiplication) check(t *testing.T, random *rand.Rand) {
	t.Helper()
	array := func(of dtypes.DType, transposed bool, dims ...int) testkernel.Array {
		if transposed {
			dims[0], dims[1] = dims[1], dims[0]
		}
		a, free, err := testkernel.Guarded(c.atStart, of, dims...)
		must.Do(t, err)
		t.Cleanup(free)
		values := make([]float32, a.Size())
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		a.Set(values) // the result's too: what was there does not matter
		return a
	}
	a, b := array(c.operands, c.aTransposed, c.m, c.k), array(c.operands, c.bTransposed, c.k, c.n)
	result := array(c.result, false, c.m, c.n)
	operands, bias := []testkernel.Array{a, b}, make([]float32, c.n)
	if c.bias {
		operands = append(operands, array(dtypes.Float32, false, c.n))
		bias = operands[2].Values()
	}
	_, kernel := dense.Matmul(c.aTransposed, c.bTransposed)
	if wrong := testkernel.Call(kernel, operands, []testkernel.Array{result}); wrong != "" {
		t.Fatalf("%+v: %s", c, wrong)
	}
	x, y, got := a.Values(), b.Values(), result.Values()
	unit := 0x1p-24
	rounded := map[dtypes.DType]float64{dtypes.Float32: 0, dtypes.BFloat16: 0x1p-8, dtypes.Float16: 0x1p-11}[c.result]
	for i := range c.m {
		for j := range c.n {
			want, size := float64(bias[j]), math.Abs(float64(bias[j]))
			for l := range c.k {
				at, of := i*c.k+l, l*c.n+j
				if c.aTransposed {
					at = l*c.m + i
				}
				if c.bTransposed {
					of = j*c.k + l
				}
				part := float64(x[at]) * float64(y[of])
				want, size = want+part, size+math.Abs(part)
			}
			// Higham 2002, §3.1, and the rounding of the result, whose smallest step in float16 is 2⁻²⁴.
			bound := size*float64(c.k+1)*unit + math.Abs(want)*rounded + 0x1p-25
			if at := i*c.n + j; !(math.Abs(float64(got[at])-want) <= bound) {
				t.Fatalf("%+v: element (%d,%d) is %g, want %g", c, i, j, got[at], want)
			}
		}
	}
}

// TestMatmul: every size from 1 to 200 in each dimension, and some beyond a block, in all forms.
func TestMatmul(t *testing.T) {
	types := [][2]dtypes.DType{{dtypes.Float32, dtypes.Float32}, {dtypes.BFloat16, dtypes.BFloat16},
		{dtypes.Float16, dtypes.Float16}, {dtypes.BFloat16, dtypes.Float32}}
	for _, bits := range widths(t) {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			dense.Limit(bits)
			random := rand.New(rand.NewPCG(1, uint64(bits)))
			try := func(m, n, k int) {
				form, of := random.IntN(16), types[0]
				if random.IntN(2) == 0 {
					of = types[random.IntN(len(types))]
				}
				multiplication{m, n, k, form&1 > 0, form&2 > 0, of[0], of[1], form&4 > 0, form&8 > 0}.check(t, random)
			}
			few := func() int { return 1 + random.IntN(40) }
			for size := 1; size <= 200; size++ {
				for range 3 {
					try(size, few(), few())
					try(few(), size, few())
					try(few(), few(), size)
				}
			}
			for range 8 {
				try(1+random.IntN(300), 1+random.IntN(700), 1+random.IntN(600))
			}
		})
	}
}

// TestColumnSums: the same for sums, up to beyond the rows that are summed by themselves.
func TestColumnSums(t *testing.T) {
	_, kernel := dense.ColumnSums()
	for _, bits := range widths(t) {
		dense.Limit(bits)
		random := rand.New(rand.NewPCG(2, uint64(bits)))
		for size := 1; size <= 200; size++ {
			for i, dims := range [][2]int{{size, 1 + random.IntN(150)}, {1 + random.IntN(150), size}} {
				x, free, err := testkernel.Guarded(i == 0, dtypes.Float32, dims[:]...)
				must.Do(t, err)
				sums, freeSums, err := testkernel.Guarded(i == 1, dtypes.Float32, dims[1])
				must.Do(t, err)
				values := make([]float32, x.Size())
				for i := range values {
					values[i] = float32(random.NormFloat64())
				}
				x.Set(values)
				if wrong := testkernel.Call(kernel, []testkernel.Array{x}, []testkernel.Array{sums}); wrong != "" {
					t.Fatalf("%v: %s", dims, wrong)
				}
				for j, got := range sums.Values() {
					want, size := 0.0, 0.0
					for r := range dims[0] {
						v := float64(values[r*dims[1]+j])
						want, size = want+v, size+math.Abs(v)
					}
					if !(math.Abs(float64(got)-want) <= size*float64(dims[0])*0x1p-24) {
						t.Fatalf("%d bits, %v: sum %d is %g, want %g", bits, dims, j, got, want)
					}
				}
				free()
				freeSums()
			}
		}
	}
}

// TestErrors: operands that do not fit are refused before any memory is read.
func TestErrors(t *testing.T) {
	f32 := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.Float32, Dims: dims} }
	half := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.BFloat16, Dims: dims} }
	ints := testkernel.Array{Type: dtypes.Int32, Dims: []int{4, 4}}
	list := func(a ...testkernel.Array) []testkernel.Array { return a }
	_, matmul := dense.Matmul(false, false)
	_, sums := dense.ColumnSums()
	for _, c := range []struct {
		operands, results []testkernel.Array
		want              string
	}{
		{list(f32(2, 3)), list(f32(2, 4)), "the call has 1 operands and 1 results: it takes 2 and gives 1"},
		{list(f32(2, 3), f32(3, 4)), list(f32(2, 4), f32(1)), "2 operands and 2 results"},
		{list(ints, ints), list(ints), "arrays must be float32, float16 or bfloat16"},
		{list(f32(2, 3), half(3, 4)), list(f32(2, 4)), "operands must have one type"},
		{list(f32(2, 3), f32(3, 4)), list(half(2, 4)), "operands must have one type, and the result the same or float32"},
		{list(f32(2, 3), f32(3, 4)), list(f32(2, 5)), "the sizes of operands and result do not fit"},
		{list(f32(2, 3), f32(5, 4)), list(f32(2, 4)), "the sizes of operands and result do not fit"},
		{list(f32(0, 3), f32(3, 4)), list(f32(0, 4)), "operands must not be empty"},
		{list(f32(2, 3), f32(3, 4), f32(3)), list(f32(2, 4)), "matmul: bias is float32[3], want float32[4]"},
	} {
		if got := testkernel.Call(matmul, c.operands, c.results); !strings.Contains(got, c.want) {
			t.Errorf("%v to %v: %q, want %q", c.operands, c.results, got, c.want)
		}
	}
	for _, c := range []struct {
		x, sums testkernel.Array
		want    string
	}{
		{half(3, 4), half(4), "arrays must be float32"},
		{f32(3, 4), f32(3), "the result must have the last axes of the operand"},
		{f32(4), f32(3, 4), "the result must have the last axes of the operand"},
	} {
		if got := testkernel.Call(sums, list(c.x), list(c.sums)); !strings.Contains(got, c.want) {
			t.Errorf("%v to %v: %q, want %q", c.x, c.sums, got, c.want)
		}
	}
}
