package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/fused/internal/kernel"
)

const unit = 0x1p-24 // the relative rounding error of float32

// problem is a call of kernels on rows of numbers, all between pages that must not be touched.
type problem struct {
	t             *testing.T
	random        *rand.Rand
	rows, columns int
	atStart       bool
}

func (p problem) String() string { return fmt.Sprintf("%d rows of %d", p.rows, p.columns) }

// array returns an array of numbers; a result's are overwritten.
func (p problem) array(of dtypes.DType, value func() float32, dims ...int) testkernel.Array {
	a, free, err := testkernel.Guarded(p.atStart, of, dims...)
	must.Do(p.t, err)
	p.t.Cleanup(free)
	values := make([]float32, a.Size())
	for i := range values {
		values[i] = value()
	}
	if of == dtypes.Int32 {
		for i, v := range values {
			*(*int32)(unsafe.Pointer(&a.Data[4*i])) = int32(v)
		}
	} else {
		a.Set(values)
	}
	return a
}

func (p problem) normal() float32 { return float32(p.random.NormFloat64()) }

// wide are normal numbers of different sizes.
func (p problem) wide() float32 { return p.normal() * float32(math.Exp2(float64(p.random.IntN(8)-3))) }

func (p problem) matrix(value func() float32) testkernel.Array {
	if p.rows%2 == 0 { // any number of axes
		return p.array(dtypes.Float32, value, 2, p.rows/2, p.columns)
	}
	return p.array(dtypes.Float32, value, p.rows, p.columns)
}

func (p problem) perRow(of dtypes.DType, value func() float32) testkernel.Array {
	if p.rows%2 == 0 {
		return p.array(of, value, 2, p.rows/2)
	}
	return p.array(of, value, p.rows)
}

func (p problem) perColumn() testkernel.Array { return p.array(dtypes.Float32, p.normal, p.columns) }

// call runs a kernel.
func (p problem) call(of func() (string, unsafe.Pointer), results []testkernel.Array, operands ...testkernel.Array) {
	p.t.Helper()
	name, handler := of()
	if wrong := testkernel.Call(handler, operands, results); wrong != "" {
		p.t.Fatalf("%s, %v: %s", name, p, wrong)
	}
}

// near checks a number against the right one.
func (p problem) near(what string, at int, got float32, want, bound float64) {
	p.t.Helper()
	if !(math.Abs(float64(got)-want) <= bound) {
		p.t.Fatalf("%s, %v, element %d: %g, want %g within %g", what, p, at, got, want, bound)
	}
}

// summed is a sum, and that of the magnitudes.
type summed struct{ of, size float64 }

func (s *summed) add(x float64) { s.of, s.size = s.of+x, s.size+math.Abs(x) }

// gelu compares with the tanh form and its derivative. The relative error of e⁻ˣ is that of x times x.
func (p problem) gelu() {
	x, bias, y, none := p.matrix(p.wide), p.perColumn(), p.matrix(p.normal), p.array(dtypes.Float32, nil, 0)
	dy, dx, dbias := p.matrix(p.normal), p.matrix(p.normal), p.perColumn()
	p.call(kernel.GELU, []testkernel.Array{y, none}, x, bias)
	p.call(kernel.GELUGradient, []testkernel.Array{dx, dbias}, x, bias, dy)
	xs, biases, ys, dys, dxs := x.Values(), bias.Values(), y.Values(), dy.Values(), dx.Values()
	sums, bounds := make([]summed, p.columns), make([]float64, p.columns)
	for i, v := range xs {
		u := float64(v + biases[i%p.columns])
		z, steep := math.Sqrt(2/math.Pi)*(u+0.044715*u*u*u), math.Sqrt(2/math.Pi)*(1+3*0.044715*u*u)
		share := 1 / (1 + math.Exp(-2*z)) // (1 + tanh z)/2, without cancellation
		few := 8 * unit * (1 + 2*math.Abs(z))
		p.near("GELU", i, ys[i], u*share, few*math.Abs(u*share)+1e-35)
		other := 2 * u * steep * share / (1 + math.Exp(2*z))
		slope, bound := share+other, few*(share+math.Abs(other))+1e-33
		g := float64(dys[i])
		p.near("GELU's gradient", i, dxs[i], slope*g, 2*bound*math.Abs(g))
		sums[i%p.columns].add(slope * g)
		bounds[i%p.columns] += 2 * bound * math.Abs(g)
	}
	for j, got := range dbias.Values() {
		p.near("bias' gradient", j, got, sums[j].of, bounds[j]+sums[j].size*float64(p.rows+8)*unit)
	}
}

// crossEntropy has targets in the row and outside of it.
func (p problem) crossEntropy() {
	n, scale := p.columns, float32(math.Exp2(float64(p.random.IntN(8)-3)))
	logits := p.matrix(func() float32 { return scale * p.normal() })
	targets := p.perRow(dtypes.Int32, func() float32 { return float32(p.random.IntN(n+2) - 1) })
	each := func() testkernel.Array { return p.perRow(dtypes.Float32, p.normal) }
	loss, largest, sum := each(), each(), each()
	p.call(kernel.CrossEntropy, []testkernel.Array{loss, largest, sum}, logits, targets)
	g, d, none := each(), p.matrix(p.normal), p.array(dtypes.Float32, nil, 0)
	p.call(kernel.CrossEntropyGradient, []testkernel.Array{d, none}, logits, targets, largest, sum, g)
	x, losses, mosts, totals := logits.Values(), loss.Values(), largest.Values(), sum.Values()
	gs, ds := g.Values(), d.Values()
	for r := range p.rows {
		row, total := x[r*n:(r+1)*n], 0.0
		most := float64(slices.Max(row))
		for _, v := range row {
			total += math.Exp(float64(v) - most)
		}
		few := float64(n+32) * unit
		p.near("largest logit", r, mosts[r], most, 0)
		p.near("sum of exponentials", r, totals[r], total, few*total)
		target := int(*(*int32)(unsafe.Pointer(&targets.Data[4*r])))
		inside, want := target >= 0 && target < n, 0.0
		if inside {
			want = math.Log(total) + most - float64(row[target])
		}
		p.near("loss", r, losses[r], want, few+8*unit*math.Abs(want))
		for j, v := range row {
			share, want := math.Exp(float64(v)-most)/total, 0.0
			if inside {
				want = share * float64(gs[r])
			}
			if j == target {
				want -= float64(gs[r])
			}
			bound := (few*share + 8*unit*(share*math.Abs(float64(v)-most)+share)) * math.Abs(float64(gs[r]))
			if j == target {
				bound += 2 * unit * math.Abs(float64(gs[r]))
			}
			p.near("cross-entropy's gradient", r*n+j, ds[r*n+j], want, bound+1e-37)
		}
	}
}

// widths runs a test for the widths of vectors that this machine has.
func widths(t *testing.T, test func(t *testing.T)) {
	widest := kernel.Bits()
	t.Cleanup(func() { kernel.Limit(512) })
	for bits := 128; bits <= widest; bits *= 2 {
		kernel.Limit(bits)
		t.Run(fmt.Sprint(bits), test)
	}
}

// TestKernels: rows of every width from 1 to 200, every number of rows, and sizes beyond what is summed by itself.
func TestKernels(t *testing.T) {
	widths(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		sizes := [][2]int{{300, 17}, {3, 5000}, {9, 4097}, {2, 20000}}
		for size := 1; size <= 200; size++ {
			sizes = append(sizes, [2]int{1 + random.IntN(40), size}, [2]int{size, 1 + random.IntN(40)})
		}
		for i, size := range sizes {
			t.Run(fmt.Sprint(size), func(t *testing.T) { // which unmaps the arrays
				p := problem{t, random, size[0], size[1], i%3 == 0}
				p.gelu()
				p.crossEntropy()
			})
		}
	})
}

// TestExtremes: infinities and NaN are not lost, and large numbers stay finite.
func TestExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	widths(t, func(t *testing.T) {
		p := problem{t, rand.New(rand.NewPCG(3, 4)), 1, 7, false}
		given := func(values ...float32) testkernel.Array {
			a := p.matrix(p.normal)
			a.Set(values)
			return a
		}
		same := func(what string, got testkernel.Array, want ...float32) {
			t.Helper()
			for i, v := range got.Values() {
				if v != want[i] && !(v != v && want[i] != want[i]) {
					t.Errorf("%s: element %d is %g, want %g", what, i, v, want[i])
				}
			}
		}
		none := p.array(dtypes.Float32, nil, 0)
		x, y, zeros := given(nan, inf, 1e30, -1e30, 0, 13, -13), p.matrix(p.normal), p.perColumn()
		zeros.Set(make([]float32, 7))
		p.call(kernel.GELU, []testkernel.Array{y, none}, x, zeros)
		same("GELU", y, nan, inf, 1e30, 0, 0, 13, 0)
		p.call(kernel.GELUGradient, []testkernel.Array{y, p.perColumn()}, x, zeros, given(1, 1, 1, 1, 1, 1, 1))
		same("GELU's gradient", y, nan, 1, 1, 0, 0.5, 1, 0)

		target := p.perRow(dtypes.Int32, func() float32 { return 1 })
		for _, c := range []struct{ logits, loss, largest testkernel.Array }{
			{given(-inf, 1e30, -inf, -1e30, 0, 0, 0), given(0), given(1e30)},
			{given(0, nan, 0, 0, 0, 0, 0), given(nan), given(0)},
			{given(0, 0, 0, 0, 0, 0, nan), given(nan), given(0)},
			{given(0, 0, 0, inf, 0, 0, 0), given(nan), given(inf)},
			{given(-inf, -inf, -inf, -inf, -inf, -inf, -inf), given(nan), given(-inf)},
		} {
			each := func() testkernel.Array { return p.perRow(dtypes.Float32, p.normal) }
			loss, largest := each(), each()
			p.call(kernel.CrossEntropy, []testkernel.Array{loss, largest, each()}, c.logits, target)
			same("loss", loss, c.loss.Values()...)
			same("largest", largest, c.largest.Values()...)
		}
	})
}

// TestErrors: operands that do not fit are refused before any memory is read.
func TestErrors(t *testing.T) {
	f32 := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.Float32, Dims: dims} }
	s32 := func(dims ...int) testkernel.Array { return testkernel.Array{Type: dtypes.Int32, Dims: dims} }
	half := testkernel.Array{Type: dtypes.BFloat16, Dims: []int{2, 3}}
	list := func(a ...testkernel.Array) []testkernel.Array { return a }
	for _, c := range []struct {
		kernel            func() (string, unsafe.Pointer)
		operands, results []testkernel.Array
		want              string
	}{
		{kernel.GELU, list(f32(2, 3)), list(f32(2, 3), f32(0)), "GELU: the call has 1 operands and 2 results: it takes 2"},
		{kernel.GELU, list(f32(2, 3), f32(3)), list(f32(2, 3)), "2 operands and 1 results"},
		{kernel.GELU, list(half, f32(3)), list(f32(2, 3), f32(0)), "GELU: operand 0 is bfloat16[2, 3], want float32[2, 3]"},
		{kernel.GELU, list(f32(2, 3), f32(2)), list(f32(2, 3), f32(0)), "GELU: operand 1 is float32[2], want float32[3]"},
		{kernel.GELU, list(f32(2, 3), f32(3)), list(f32(3, 2), f32(0)), "GELU: result 0 is float32[3, 2]"},
		{kernel.GELU, list(f32(2, 3), f32(3)), list(f32(2, 3), f32(1)), "GELU: result 1 is float32[1], want float32[0]"},
		{kernel.GELU, list(f32(0, 3), f32(3)), list(f32(0, 3), f32(0)), "operands must not be empty"},
		{kernel.GELU, list(f32(2, 0), f32(0)), list(f32(2, 0), f32(0)), "operands must not be empty"},
		{kernel.GELU, list(f32(), f32()), list(f32(), f32(0)), "operands must not be empty"},
		{kernel.GELUGradient, list(f32(2, 3), f32(3), f32(2, 3)), list(f32(2, 3), f32(2)),
			"GELU's gradient: result 1 is float32[2], want float32[3]"},
		{kernel.CrossEntropy, list(f32(2, 3), f32(2)), list(f32(2), f32(2), f32(2)),
			"cross-entropy: operand 1 is float32[2], want int32[2]"},
		{kernel.CrossEntropyGradient, list(f32(2, 3), s32(3), f32(2), f32(2), f32(2)), list(f32(2, 3), f32(0)),
			"cross-entropy's gradient: operand 1 is int32[3], want int32[2]"},
	} {
		_, handler := c.kernel()
		if got := testkernel.Call(handler, c.operands, c.results); !strings.Contains(got, c.want) {
			t.Errorf("%v to %v: %q, want %q", c.operands, c.results, got, c.want)
		}
	}
}
