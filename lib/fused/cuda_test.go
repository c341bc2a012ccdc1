package fused

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/cudatest"
	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/fused/internal/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

// functions are the names of the CUDA kernels in their source: for float32, for bfloat16.
var functions = map[dtypes.DType][2]string{
	dtypes.Float32:  {"bias_gelu<float>", "bias_gelu_gradient<float>"},
	dtypes.BFloat16: {"bias_gelu<__nv_bfloat16>", "bias_gelu_gradient<__nv_bfloat16>"},
}

// driver has the CUDA kernels run on this machine's processor.
func driver(t *testing.T) cudatest.Driver {
	t.Helper()
	var all []string
	for _, names := range functions {
		all = append(all, names[:]...)
	}
	return must.Get(cudatest.Load(t.TempDir(), kernel.CUDA, all...))(t)
}

// exactGELU returns u·(1 + tanh z)/2 and its derivative.
func exactGELU(u float64) (y, slope float64) {
	z, steep := math.Sqrt(2/math.Pi)*(u+0.044715*u*u*u), math.Sqrt(2/math.Pi)*(1+3*0.044715*u*u)
	share := 1 / (1 + math.Exp(-2*z)) // without cancellation
	return u * share, share + 2*u*steep*share/(1+math.Exp(2*z))
}

// rounding is the largest relative rounding error of a type.
var rounding = map[dtypes.DType]float64{dtypes.Float32: 0x1p-24, dtypes.BFloat16: 0x1p-8}

// TestCUDAKernels: on a processor, the source that NVRTC compiles gives what float64 gives, for shapes that fill no
// block, at addresses that are aligned and not, and touches nothing outside of the arrays.
func TestCUDAKernels(t *testing.T) {
	if !cudatest.Alone(t) {
		return
	}
	d := driver(t)
	random := rand.New(rand.NewPCG(1, 2))
	sizes := [][2]int{{1, 1}, {1, 128}, {2, 256}, {64, 32}, {65, 136}, {200, 257}, {7, 1000}, {700, 24}}
	for range 20 {
		sizes = append(sizes, [2]int{1 + random.IntN(150), 1 + random.IntN(300)})
	}
	for i, size := range sizes {
		for of := range functions {
			p := problem{t, random, of, size[0], size[1], i%2 == 0}
			p.check()
		}
	}
	if got := *d.Int("gpu_launches"); got != int32(4*len(sizes)) || d.Stream() != testkernel.Stream {
		t.Errorf("%d launches, the last on stream %#x: want %d on %#x", got, d.Stream(), 4*len(sizes), testkernel.Stream)
	}
}

// problem is a call of the CUDA kernels.
type problem struct {
	t             *testing.T
	random        *rand.Rand
	of            dtypes.DType
	rows, columns int
	atStart       bool
}

func (p problem) array(of dtypes.DType, dims ...int) testkernel.Array {
	a, free, err := testkernel.Guarded(p.atStart, of, dims...)
	must.Do(p.t, err)
	p.t.Cleanup(free)
	values := make([]float32, a.Size())
	for i := range values {
		values[i] = float32(p.random.NormFloat64() * math.Exp2(float64(p.random.IntN(8)-3)))
	}
	a.Set(values)
	return a
}

func (p problem) call(function string, results []testkernel.Array, operands ...testkernel.Array) {
	p.t.Helper()
	handler := must.Get(cudaHandler(function))(p.t)
	if wrong := testkernel.Call(handler, operands, results); wrong != "" {
		p.t.Fatalf("%s of %d rows of %d: %s", function, p.rows, p.columns, wrong)
	}
}

func (p problem) near(what string, at int, got float32, want, bound float64) {
	p.t.Helper()
	if !(math.Abs(float64(got)-want) <= bound) {
		p.t.Fatalf("%s of %v, %d rows of %d, element %d: %g, want %g within %g", what, p.of, p.rows, p.columns, at, got,
			want, bound)
	}
}

func (p problem) check() {
	p.t.Helper()
	slices := (p.rows + rowsOfSlice - 1) / rowsOfSlice
	matrix := func() testkernel.Array { return p.array(p.of, p.rows, p.columns) }
	x, bias, y, dy, dx := matrix(), p.array(p.of, p.columns), matrix(), matrix(), matrix()
	sums := p.array(dtypes.Float32, slices, p.columns)
	p.call(functions[p.of][0], []testkernel.Array{y, p.array(dtypes.Float32, 0)}, x, bias)
	p.call(functions[p.of][1], []testkernel.Array{dx, sums}, x, bias, dy)
	biases, ys, dys, dxs := bias.Values(), y.Values(), dy.Values(), dx.Values()
	want, size := make([]float64, p.columns), make([]float64, p.columns)
	for i, v := range x.Values() {
		u := float64(v + biases[i%p.columns])
		exact, slope := exactGELU(u)
		few := 16 * 0x1p-24 * (1 + math.Abs(u)*(1+u*u)) // as e to the power of z has
		p.near("GELU", i, ys[i], exact, (few+rounding[p.of])*math.Abs(exact)+1e-35)
		g := float64(dys[i])
		p.near("GELU's gradient", i, dxs[i], slope*g, (few+rounding[p.of]*math.Abs(slope))*math.Abs(g)+1e-35)
		want[i%p.columns] += slope * g
		size[i%p.columns] += (few + 0x1p-24*float64(p.rows)) * math.Abs(g) * (1 + math.Abs(slope))
	}
	for j := range want {
		var got float32
		for s := range slices {
			got += sums.Values()[s*p.columns+j]
		}
		p.near("the bias's gradient", j, got, want[j], size[j])
	}
}

// TestCUDAExtremes: infinities and NaN are not lost, and large numbers stay finite.
func TestCUDAExtremes(t *testing.T) {
	if !cudatest.Alone(t) {
		return
	}
	driver(t)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for of, names := range functions {
		p := problem{t, rand.New(rand.NewPCG(3, 4)), of, 1, 7, false}
		given := func(values ...float32) testkernel.Array {
			a := p.array(of, 1, 7)
			a.Set(values)
			return a
		}
		same := func(what string, got testkernel.Array, want ...float32) {
			t.Helper()
			for i, v := range got.Values() {
				if v != want[i] && !(v != v && want[i] != want[i]) {
					t.Errorf("%s of %v: element %d is %g, want %g", what, of, i, v, want[i])
				}
			}
		}
		x, ones := given(nan, inf, 0x1p100, -0x1p100, 0, 16, -16), given(1, 1, 1, 1, 1, 1, 1)
		zeros := given(0, 0, 0, 0, 0, 0, 0)
		zeros.Dims = zeros.Dims[1:]
		y, sums := given(0, 0, 0, 0, 0, 0, 0), p.array(dtypes.Float32, 1, 7)
		p.call(names[0], []testkernel.Array{y, p.array(dtypes.Float32, 0)}, x, zeros)
		same("GELU", y, nan, inf, 0x1p100, 0, 0, 16, 0)
		p.call(names[1], []testkernel.Array{y, sums}, x, zeros, ones)
		same("GELU's gradient", y, nan, 1, 1, 0, 0.5, 1, 0)
		same("the bias's gradient", sums, nan, 1, 1, 0, 0.5, 1, 0)
	}
}

// TestCUDAInProgram: in XLA's programs the CUDA kernels are BiasGELU and its gradients, also where they are recomputed.
// The devices are CPUs, to which the handlers for GPUs are given with a stream.
func TestCUDAInProgram(t *testing.T) {
	if kernel.Bits() == 128 {
		return // nothing calls kernels
	}
	if !cudatest.Alone(t) {
		return
	}
	d := driver(t)
	without := withoutKernels(t)
	for of, names := range functions {
		on := func(name, function string) *xla.Kernel {
			return xla.NewKernel(name+of.String(), testkernel.OnCPU(must.Get(cudaHandler(function))(t)))
		}
		onGPU[of] = geluOnGPU{on("test_cheap_gelu_", names[0]), on("test_cheap_gelu_gradient_", names[1])}
	}
	for _, o := range operations() {
		if o.name != "BiasGELU" {
			continue
		}
		exact := o.run(t, without, dtypes.Float64, o.of)
		for of := range functions {
			before := *d.Int("gpu_launches")
			got := o.run(t, devicetest.One(), of, o.of)
			if n := *d.Int("gpu_launches") - before; n != 2 {
				t.Errorf("%v of %v: %d kernels were launched, want 2", of, o.dims, n)
			}
			plain := o.run(t, without, of, o.of)
			for i := range exact {
				is, size := apart(got[i], exact[i])
				may, _ := apart(plain[i], exact[i])
				if !(is <= 2*may+8*rounding[of]*size) {
					t.Errorf("%v of %v, result %d: error %g, of XLA's operations %g", of, o.dims, i, is, may)
				}
			}
		}
	}
	must.Get(devicetest.CallOn(devicetest.One(), func(in nodes) nodes {
		x := graph.ConvertDType(in[0], dtypes.BFloat16)
		_, are := callsOnGPU(x, graph.Slice(in[1], graph.AxisRange())) // a bias of another type
		_, empty := callsOnGPU(graph.Zeros(x.Graph(), shapes.Make(dtypes.Float32, 2, 0)), in[1])
		if are || empty {
			t.Error("CUDA kernels are asked to compute what they cannot")
		}
		return in
	}, operations()[0].inputs()...))(t)
}
