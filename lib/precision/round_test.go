package precision_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/precision"
)

type (
	node  = graph.Node
	nodes = []*graph.Node
)

// run builds a graph function on a backend and runs it once on Go values.
func run(t testing.TB, backend compute.Backend, f func(nodes) nodes, in ...any) []*tensors.Tensor {
	t.Helper()
	out := must.Get(try(backend, f, in...))(t)
	return out
}

func try(backend compute.Backend, f func(nodes) nodes, in ...any) ([]*tensors.Tensor, error) {
	exec, err := graph.NewExec(backend, f)
	if err != nil {
		return nil, err
	}
	defer exec.Finalize()
	own := slices.Clone(in)
	for i := range own { // GoMLX looks at each element of a slice
		switch x := own[i].(type) {
		case []float32:
			own[i] = tensors.FromFlatDataAndDimensions(x, len(x))
		case []uint32:
			own[i] = tensors.FromFlatDataAndDimensions(x, len(x))
		}
	}
	return exec.Call(own...)
}

func floats(x *tensors.Tensor) []float32 { return tensors.MustCopyFlatData[float32](x) }

func backends() map[string]compute.Backend {
	return map[string]compute.Backend{"Go": devicetest.PureGo(), "XLA": devicetest.One()}
}

// inputs are float32 numbers that matter to a format, and random ones of all kinds.
func inputs(f precision.Format) (all []float32) {
	if f.Bits() <= 16 {
		next := func(x float64, up bool) float64 {
			return float64(math.Nextafter32(float32(x), float32(next64(0, up)*math.Inf(1))))
		}
		for _, x := range numbers(f).probes(next) {
			all = append(all, float32(x), -float32(x))
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range 20_000 {
		all = append(all, math.Float32frombits(r.Uint32()), float32(math.Ldexp(r.NormFloat64(), r.IntN(60)-30)))
	}
	return append(all, float32(math.NaN()), math.Float32frombits(0x7f800001), math.Float32frombits(0xff800001))
}

func check(t *testing.T, name string, x, got []float32, want func(i int, x float64) float64) {
	t.Helper()
	for i := range x {
		w := want(i, float64(x[i]))
		if g := float64(got[i]); equal(g, float64(float32(w))) && math.Signbit(g) == math.Signbit(w) { // of NaNs too
			continue
		}
		t.Fatalf("%s: element %d, %x, becomes %x, want %x", name, i, x[i], got[i], w)
	}
}

func variants() []precision.Format {
	toNaN, saturated := precision.E4M3, precision.FP16
	toNaN.Overflow, saturated.Overflow = precision.ToNaN, precision.ToLargest
	return append(precision.Formats(), toNaN, saturated)
}

func TestRoundInGraph(t *testing.T) {
	var x []any
	for _, f := range variants() {
		x = append(x, inputs(f))
	}
	for name, backend := range backends() {
		out := run(t, backend, func(in nodes) (out nodes) {
			for i, f := range variants() {
				out = append(out, precision.Round(in[i], f))
			}
			return out
		}, x...)
		for i, f := range variants() {
			check(t, name+" "+f.Name, x[i].([]float32), floats(out[i]),
				func(_ int, x float64) float64 { return f.Round(x) })
		}
	}
}

func TestRoundStochasticInGraph(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	var in []any
	for _, f := range variants()[1:] { // FP32 has nothing to round
		x := inputs(f)
		random := make([]uint32, len(x))
		for i := range random {
			random[i] = r.Uint32()>>r.IntN(32) | 1 // 0 is below even a part that XLA takes for 0
		}
		in = append(in, x, random)
	}
	for name, backend := range backends() {
		out := run(t, backend, func(in nodes) (out nodes) {
			for i, f := range variants()[1:] {
				out = append(out, precision.RoundStochastic(in[2*i], f, in[2*i+1]))
			}
			return out
		}, in...)
		for i, f := range variants()[1:] {
			x, random := in[2*i].([]float32), in[2*i+1].([]uint32)
			check(t, name+" "+f.Name, x, floats(out[i]),
				func(i int, x float64) float64 { return f.RoundStochastic(x, float64(random[i])/(1<<32)) })
		}
	}
}

// XLA's own conversions to the half types are right in outputs, except for NaN.
func TestConvertDTypeOfXLA(t *testing.T) {
	for _, f := range []precision.Format{precision.FP16, precision.BF16} {
		dtype, _ := f.DType()
		x := inputs(f)
		out := run(t, devicetest.One(), func(in nodes) nodes {
			return nodes{graph.Bitcast(graph.ConvertDType(in[0], dtype), dtypes.Uint16)}
		}, x)
		bits := tensors.MustCopyFlatData[uint16](out[0])
		got := make([]float32, len(x))
		for i := range got {
			got[i] = float32(f.Decode(uint32(bits[i])))
		}
		check(t, "conversion to "+f.Name, x, got, func(_ int, x float64) float64 { return f.Round(x) })
	}
}

// Half types are rounded in float32, and the gradient is passed through.
func TestRoundOfHalvesAndGradient(t *testing.T) {
	for name, backend := range backends() {
		out := run(t, backend, func(in nodes) nodes {
			x := graph.ConvertDType(in[0], dtypes.BFloat16)
			y := precision.Round(x, precision.E4M3)
			z := precision.RoundStochastic(in[0], precision.E5M2,
				graph.OnesLike(graph.ConvertDType(in[0], dtypes.Uint32)))
			l := graph.ReduceAllSum(graph.Mul(graph.ConvertDType(graph.Square(y), dtypes.Float32), z))
			if y.DType() != dtypes.BFloat16 {
				t.Errorf("rounded bfloat16 is %s", y.DType())
			}
			return nodes{graph.ConvertDType(y, dtypes.Float32), z, graph.Gradient(l, in[0])[0]}
		}, []float32{1.0625, -500, 0.3125})
		// E4M3 has 1.125, 448 and 0.3125; E5M2, upwards where the distance is more than 2⁻³², 1.25, 512 and 0.3125.
		for i, want := range [][]float32{{1, -448, 0.3125}, {1.25, -512, 0.3125},
			{2*1*1.25 + 1, 2*448*512 + 448*448, 3 * 0.3125 * 0.3125}} {
			for j := range want {
				// The gradient of y is bfloat16, of 8 bits.
				bound := math.Abs(float64(want[j])) * 0x1p-8 * float64(i/2)
				if got := floats(out[i])[j]; math.Abs(float64(got-want[j])) > bound {
					t.Errorf("%s: result %d element %d is %g, want %g", name, i, j, got, want[j])
				}
			}
		}
	}
}

func TestRoundPanics(t *testing.T) {
	for want, f := range map[string]func(x *node) *node{
		"numbers of type Float64": func(x *node) *node {
			return precision.Round(graph.ConvertDType(x, dtypes.Float64), precision.BF16)
		},
		"0 bits of exponent": func(x *node) *node { return precision.Round(x, precision.Format{}) },
		"random bits of shape (Float32)[2]": func(x *node) *node {
			return precision.RoundStochastic(x, precision.BF16, x)
		},
		"random bits of shape (Uint32) for": func(x *node) *node {
			return precision.RoundStochastic(x, precision.BF16, graph.Const(x.Graph(), uint32(1)))
		},
	} {
		_, err := try(devicetest.PureGo(), func(in nodes) nodes { return nodes{f(in[0])} }, []float32{1, 2})
		must.Refuse(t, "", err, want)
	}
}
