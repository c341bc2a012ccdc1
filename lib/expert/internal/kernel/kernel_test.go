package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/expert/internal/kernel"
)

// problem is a grouped matmul between pages that must not be touched.
type problem struct {
	rows, k, n int
	counts     []int32
	of         dtypes.DType
	atStart    bool
}

func (p problem) array(t *testing.T, random *rand.Rand, of dtypes.DType, dims ...int) testkernel.Array {
	a, free, err := testkernel.Guarded(p.atStart, of, dims...)
	must.Do(t, err)
	t.Cleanup(free)
	values := make([]float32, a.Size())
	for i := range values {
		values[i] = float32(random.NormFloat64())
	}
	if of != dtypes.Int32 {
		a.Set(values) // the result's too: what was there does not matter
	}
	return a
}

// set writes integers.
func set(a testkernel.Array, values []int32) {
	for i, v := range values {
		*(*int32)(unsafe.Pointer(&a.Data[4*i])) = v
	}
}

// groups returns the group of each row, or −1.
func (p problem) groups() []int {
	all := make([]int, 0, p.rows)
	for e, n := range p.counts {
		for range n {
			all = append(all, e)
		}
	}
	for len(all) < p.rows {
		all = append(all, -1)
	}
	return all
}

// check compares the three kernels with sums in float64.
func (p problem) check(t *testing.T, random *rand.Rand) {
	t.Helper()
	e := len(p.counts)
	array := func(dims ...int) testkernel.Array { return p.array(t, random, p.of, dims...) }
	x, w, y := array(p.rows, p.k), array(e, p.k, p.n), array(p.rows, p.n)
	dx, dw, nothing := array(p.rows, p.k), array(e, p.k, p.n), p.array(t, random, dtypes.Float32, 0)
	counts := p.array(t, random, dtypes.Int32, e)
	set(counts, p.counts)
	call := func(of func() (string, unsafe.Pointer), result testkernel.Array, operands ...testkernel.Array) {
		t.Helper()
		name, handler := of()
		if wrong := testkernel.Call(handler, operands, []testkernel.Array{result, nothing}); wrong != "" {
			t.Fatalf("%s, %+v: %s", name, p, wrong)
		}
	}
	call(kernel.ByMatrices, y, x, w, counts)
	call(kernel.ByTransposed, dx, y, w, counts)
	call(kernel.ByRows, dw, x, y, counts)
	xs, ws, ys, groups := x.Values(), w.Values(), y.Values(), p.groups()
	sums := func(dims ...int) ([]float64, []float64) {
		n := dims[0] * dims[1]
		return make([]float64, n), make([]float64, n)
	}
	wantY, sizeY := sums(p.rows, p.n)
	wantX, sizeX := sums(p.rows, p.k)
	wantW, sizeW := sums(e, p.k*p.n)
	for r, g := range groups {
		for i := range p.k {
			for j := range p.n {
				if g < 0 {
					continue
				}
				at := (g*p.k+i)*p.n + j
				add := func(want, size []float64, to int, a, b float32) {
					want[to] += float64(a) * float64(b)
					size[to] += math.Abs(float64(a) * float64(b))
				}
				add(wantY, sizeY, r*p.n+j, xs[r*p.k+i], ws[at])
				add(wantX, sizeX, r*p.k+i, ys[r*p.n+j], ws[at])
				add(wantW, sizeW, at, xs[r*p.k+i], ys[r*p.n+j])
			}
		}
	}
	rounded := map[dtypes.DType]float64{dtypes.Float32: 0, dtypes.BFloat16: 0x1p-8, dtypes.Float16: 0x1p-11}[p.of]
	near := func(what string, terms int, got []float32, want, size []float64) {
		t.Helper()
		for i, v := range got {
			// Higham 2002, §3.1, and the rounding of the result, whose smallest step in float16 is 2⁻²⁴.
			bound := size[i]*float64(terms+1)*0x1p-24 + math.Abs(want[i])*rounded
			if size[i] > 0 {
				bound += 0x1p-25
			}
			if !(math.Abs(float64(v)-want[i]) <= bound) {
				t.Fatalf("%s of %+v: element %d is %g, want %g", what, p, i, v, want[i])
			}
		}
	}
	near("rows by matrices", p.k, ys, wantY, sizeY)
	near("rows by transposed matrices", p.n, dx.Values(), wantX, sizeX)
	near("rows by rows", p.rows, dw.Values(), wantW, sizeW)
}

// TestGrouped: groups of any size, also none, with and without rows after them, in all types, for every width of
// vectors.
func TestGrouped(t *testing.T) {
	widest := kernel.Bits()
	t.Cleanup(func() { kernel.Limit(512) })
	for bits := 128; bits <= widest; bits *= 2 {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			kernel.Limit(bits)
			random := rand.New(rand.NewPCG(1, uint64(bits)))
			for i := range 60 {
				p := problem{k: 1 + random.IntN(60), n: 1 + random.IntN(60), counts: make([]int32, 1+random.IntN(9)),
					atStart: i%2 == 0, of: []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16}[i%3]}
				if i%20 == 0 { // more than one block, and more than a part of zeros
					p.k, p.n = 300+random.IntN(200), 600+random.IntN(100)
				}
				for e := range p.counts {
					if random.IntN(3) > 0 {
						p.counts[e] = random.Int32N(70)
					}
					p.rows += int(p.counts[e])
				}
				p.rows = max(1, p.rows+random.IntN(40)*(i%4/2))
				p.check(t, random)
			}
		})
	}
}

// TestErrors: operands that do not fit are refused before any memory is read, and counts before any is written.
func TestErrors(t *testing.T) {
	f32 := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.Float32, Dims: dims} }
	s32 := func(values ...int32) testkernel.Array {
		a, free, err := testkernel.Guarded(false, dtypes.Int32, len(values))
		must.Do(t, err)
		t.Cleanup(free)
		set(a, values)
		return a
	}
	half := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.BFloat16, Dims: dims} }
	list := func(a ...testkernel.Array) []testkernel.Array { return a }
	two := s32(0, 0)
	for _, c := range []struct {
		kernel            func() (string, unsafe.Pointer)
		operands, results []testkernel.Array
		want              string
	}{
		{kernel.ByMatrices, list(f32(2, 3), f32(2, 3, 4)), list(f32(2, 4), f32(0)), "2 operands and 2 results: it takes 3"},
		{kernel.ByMatrices, list(two, f32(2, 3, 4), two), list(f32(2, 4), f32(0)), "arrays must be float32"},
		{kernel.ByMatrices, list(f32(2), f32(2, 3, 4), two), list(f32(2, 4), f32(0)), "first operand is float32[2]"},
		{kernel.ByMatrices, list(f32(2, 3), half(2, 3, 4), two), list(f32(2, 4), f32(0)),
			"the second operand is bfloat16[2, 3, 4], want float32[2, 3, any]"},
		{kernel.ByMatrices, list(f32(2, 3), f32(1, 3, 4), two), list(f32(2, 4), f32(0)), "want float32[2, 3, any]"},
		{kernel.ByMatrices, list(f32(2, 3), f32(2, 3, 4), f32(2)), list(f32(2, 4), f32(0)), "counts is float32[2], want int32"},
		{kernel.ByMatrices, list(f32(2, 3), f32(2, 3, 4), two), list(f32(3, 4), f32(0)),
			"the result is float32[3, 4], want float32[2, 4]"},
		{kernel.ByMatrices, list(f32(2, 3), f32(2, 3, 4), two), list(f32(2, 4), f32(1)), "the second result is float32[1]"},
		{kernel.ByMatrices, list(f32(0, 3), f32(2, 3, 4), two), list(f32(0, 4), f32(0)), "operands must not be empty"},
		{kernel.ByTransposed, list(f32(2, 4), f32(2, 3, 5), two), list(f32(2, 3), f32(0)), "want float32[2, any, 4]"},
		{kernel.ByRows, list(f32(2, 3), f32(3, 4), two), list(f32(2, 3, 4), f32(0)), "want float32[2, any]"},
		{kernel.ByRows, list(f32(2, 3), f32(2, 4), two), list(f32(2, 4, 3), f32(0)), "want float32[2, 3, 4]"},
		{kernel.ByRows, list(f32(2, 3), f32(2, 4), s32(1, 2)), list(f32(2, 3, 4), f32(0)),
			"group 1 has 2 rows, and 1 are left of 2"},
		{kernel.ByRows, list(f32(2, 3), f32(2, 4), s32(1, -1)), list(f32(2, 3, 4), f32(0)), "group 1 has -1 rows"},
	} {
		_, handler := c.kernel()
		if got := testkernel.Call(handler, c.operands, c.results); !strings.Contains(got, c.want) {
			t.Errorf("%v to %v: %q, want %q", c.operands, c.results, got, c.want)
		}
	}
}
