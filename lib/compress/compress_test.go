package compress_test

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
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/precision"
)

type (
	node  = graph.Node
	nodes = []*graph.Node
)

// platforms are the backends, which share no code for arithmetic, and codecs to test on each, with room for any values:
// few on XLA, which compiles slowly.
func platforms() []platform {
	return []platform{
		{"Go", devicetest.PureGo(), []string{"dense", "fp16", "bf16", "fp10", "e4m3", "e5m2", "int8", "int8:7",
			"csr:1"}},
		{"XLA", devicetest.One(), []string{"bf16", "csr:1"}},
	}
}

type platform struct {
	name    string
	backend compute.Backend
	codecs  []string
}

func parse(t testing.TB, name string) compress.Codec {
	t.Helper()
	c := must.Get(compress.Parse(name))(t)
	return c
}

// call runs a graph function and returns its outputs as float32.
func call(t testing.TB, backend compute.Backend, f func(nodes) nodes, in ...*tensors.Tensor) [][]float32 {
	t.Helper()
	own := make([]*tensors.Tensor, len(in)) // GoMLX keeps a tensor to the backend that saw it first
	for i, x := range in {
		var err error
		if own[i], err = x.LocalClone(); err != nil {
			t.Fatal(err)
		}
	}
	out := must.Get(devicetest.CallOn(backend, func(in nodes) nodes {
		out := slices.Clone(f(in))
		for i := range out {
			out[i] = graph.ConvertDType(out[i], dtypes.Float32)
		}
		return out
	}, own...))(t)
	flat := make([][]float32, len(out))
	for i := range out {
		flat[i] = tensors.MustCopyFlatData[float32](out[i])
	}
	return flat
}

// same compares bits; all NaNs count as one.
func same(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Errorf("%s: number %d is %g (%#x), want %g (%#x)", what, i, got[i], math.Float32bits(got[i]), want[i],
				math.Float32bits(want[i]))
			return
		}
	}
}

func tensor(values []float32, dims ...int) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(values, dims...)
}

// random returns normally distributed numbers.
func random(seed uint64, dims ...int) *tensors.Tensor {
	r, n := rand.New(rand.NewPCG(seed, 1)), 1
	for _, d := range dims {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	return tensor(values, dims...)
}

// special are the numbers at which formats, zeros and signs differ.
func special() []float32 {
	inf := float32(math.Inf(1))
	values := []float32{0, 1, 1.5, 3.25, 5e-8, 1e-7, 7e-3, 0x1p-9, 0x1p-10, 0x1.8p-10, 240, 447, 449, 57344, 65504,
		65520, 7e4, 1e30,
		1e-39, math.SmallestNonzeroFloat32, math.MaxFloat32, inf, float32(math.NaN()), math.Float32frombits(0x7f800001)}
	for _, v := range values {
		values = append(values, math.Float32frombits(math.Float32bits(v)^1<<31))
	}
	return values
}

// layer is the plain form of a layer.
func layer(x, w *node) *node {
	y := precision.Matmul{}.Dot(x, []int{-1}, nil, w, []int{0}, nil)
	return graph.Max(y, graph.ZerosLike(y))
}

// deep returns the loss of two layers and its gradients by all inputs, x and w.
func deep(layer func(x, w *node) *node, convert dtypes.DType) func(nodes) nodes {
	return func(in nodes) nodes {
		in = precision.Cast(in, convert)
		h := in[0]
		for range 2 {
			h = layer(h, in[1])
		}
		loss := graph.ReduceAllSum(graph.Square(graph.ConvertDType(h, dtypes.Float32)))
		return append(nodes{h, loss}, graph.Gradient(loss, in...)...)
	}
}

// Lossless codecs change no bit, and lossy ones change no bit of the forward pass.
func TestLossless(t *testing.T) {
	x, w := random(1, 7, 37), random(2, 37, 37)
	types := map[string]dtypes.DType{"bf16": dtypes.BFloat16, "fp16": dtypes.Float16} // for which these are lossless
	for _, on := range platforms() {
		for _, name := range on.codecs {
			if name == "bf16" && on.name == "XLA" {
				continue // for the time it takes to compile
			}
			codec, dtype, lossless := parse(t, name), dtypes.Float32, name == "dense" || name == "csr:1"
			if half, ok := types[name]; ok {
				dtype, lossless = half, true
			}
			got := call(t, on.backend, deep(func(x, w *node) *node {
				return compress.ReLU(compress.Dot(x, w, codec, precision.Matmul{}))
			}, dtype), x, w)
			want := call(t, on.backend, deep(layer, dtype), x, w)
			for i, of := range []string{"output", "loss", "gradient of x", "gradient of w"} {
				if i < 2 || lossless {
					same(t, on.name+", "+name+": "+of, got[i], want[i])
				}
			}
		}
	}
}

// For any codec, the gradient is that at the decoded x, not at x: also for nonlinear f, with a matmul's own settings,
// and for special numbers.
func TestGradients(t *testing.T) {
	fp8 := precision.Matmul{Operands: precision.E4M3, Gradients: precision.E5M2}
	dot := func(x, w *node) *node { return fp8.Dot(x, []int{-1}, nil, w, []int{0}, nil) }
	gelu := func(x *node) *node { return graph.Mul(x, graph.Sigmoid(graph.MulScalar(x, 1.702))) }
	values := slices.DeleteFunc(special(), func(x float32) bool { return x != x || math.IsInf(float64(x), 0) })
	numbers := tensor(values, len(values)/2, 2)
	for _, on := range platforms() {
		for i, name := range on.codecs {
			codec := parse(t, name)
			dtype := []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16}[i%3]
			got := call(t, on.backend, func(in nodes) nodes {
				in = precision.Cast(in, dtype)
				x, w, z := in[0], in[1], in[2]
				v := graph.Sin(graph.IotaFull(x.Graph(), w.Shape())) // as the gradient that arrives; w is square
				gradients := func(y *node, of *node) *node {
					return graph.Gradient(graph.ReduceAllSum(graph.Mul(y, v)), of)[0]
				}
				decoded := codec.Decode(codec.Encode(x), x.Shape())
				through := compress.Through(z, codec, gelu)
				there := graph.Identity(graph.StopGradient(codec.Decode(codec.Encode(z), z.Shape())))
				return nodes{
					gradients(compress.Dot(x, w, codec, fp8), w), gradients(dot(graph.StopGradient(decoded), w), w),
					gradients(compress.Dot(x, w, codec, fp8), x), gradients(dot(x, w), x),
					through, gelu(z),
					graph.Gradient(graph.ReduceAllSum(through), z)[0],
					graph.Gradient(graph.ReduceAllSum(gelu(there)), there)[0],
				}
			}, random(3, 12, 12), random(4, 12, 12), numbers)
			for j, what := range []string{"gradient of w", "gradient of x", "f(x)", "gradient through f"} {
				same(t, on.name+", "+name+", "+dtype.String()+": "+what, got[2*j], got[2*j+1])
			}
		}
	}
}

// The gradient of a gate needs both inputs: several inputs, several outputs, one of them not a float, and integers
// among the live inputs.
func TestKeep(t *testing.T) {
	f := func(x, live nodes) nodes {
		rows := graph.Gather(live[0], graph.InsertAxes(live[1], -1))
		y := graph.Mul(graph.Mul(x[0], graph.Sigmoid(x[1])), rows)
		return nodes{y, live[1], graph.Cos(graph.Mul(x[1], x[1]))}
	}
	in := []*tensors.Tensor{random(5, 3, 5), random(6, 3, 5), random(7, 4, 5), tensors.FromValue([]int32{2, 0, 2})}
	run := func(keep func(x, live nodes) nodes) func(nodes) nodes {
		return func(in nodes) nodes {
			out := keep(in[:2], in[2:])
			loss := graph.Add(graph.ReduceAllSum(graph.Square(out[0])), graph.ReduceAllSum(graph.Exp(out[2])))
			return append(append(out, loss), graph.Gradient(loss, in[:3]...)...)
		}
	}
	want := call(t, devicetest.PureGo(), run(f), in...)
	got := call(t, devicetest.PureGo(), run(func(x, live nodes) nodes {
		return compress.Keep(parse(t, "csr:1"), x, live, f)
	}), in...)
	for i := range want {
		same(t, "result "+string(rune('0'+i)), got[i], want[i])
	}
}

// ReLU's gradient is GoMLX's for every number except NaN, for which GoMLX's is NaN.
func TestReLU(t *testing.T) {
	values := special()
	v := random(8, len(values))
	for _, on := range platforms() {
		got := call(t, on.backend, func(in nodes) nodes {
			x, v := in[0], in[1]
			ours, plain := compress.ReLU(x), graph.Max(x, graph.ZerosLike(x))
			gradient := func(y *node) *node { return graph.Gradient(graph.ReduceAllSum(graph.Mul(y, v)), x)[0] }
			return nodes{ours, plain, gradient(ours), gradient(plain)}
		}, tensor(values, len(values)), v)
		for i, x := range values {
			if x != x {
				if g := got[2][i]; g != 0 {
					t.Errorf("%s: the gradient at NaN is %g, want 0", on.name, g)
				}
				got[3][i] = got[2][i]
			}
		}
		same(t, on.name+": max(x,0)", got[0], got[1])
		same(t, on.name+": gradient", got[2], got[3])
	}
}

// Under Checkpoint the codes are recomputed, with the same results.
func TestCheckpoint(t *testing.T) {
	block := func(name string, checkpoint bool) func(x, w *node) *node {
		codec := parse(t, name)
		return func(x, w *node) *node {
			if checkpoint {
				x = x.Checkpoint()
			}
			x = compress.ReLU(compress.Dot(x, w, codec, precision.Matmul{}))
			return compress.Dot(x, graph.Sin(w), codec, precision.Matmul{})
		}
	}
	x, w := random(9, 6, 20), random(10, 20, 20)
	for _, on := range platforms() {
		for _, name := range on.codecs {
			if name == "csr:1" && on.name == "XLA" {
				continue // for the time it takes to compile
			}
			want := call(t, on.backend, deep(block(name, false), dtypes.Float32), x, w)
			got := call(t, on.backend, deep(block(name, true), dtypes.Float32), x, w)
			for i := range want {
				same(t, on.name+", "+name+" under Checkpoint", got[i], want[i])
			}
		}
	}
}
