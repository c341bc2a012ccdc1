package native_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/xla"
)

// layerNorm (Ba et al. 2016) as a notebook's cell has it. It keeps 1/σ of each row, which the backward pass needs.
const layerNormSource = `
#include <math.h>

const char *layer_norm(slice_f32 y, slice_f32 rstd, slice_f32 x, slice_f32 scale, slice_f32 shift, float epsilon) {
	int64_t width = scale.n;
	if (shift.n != width || y.n != x.n || rstd.n * width != x.n) return "the lengths do not fit";
	for (int64_t row = 0; row < rstd.n; row++) {
		const float *from = x.at + row * width;
		float *to = y.at + row * width, mean = 0, variance = 0;
		for (int64_t i = 0; i < width; i++) mean += from[i];
		mean /= width;
		for (int64_t i = 0; i < width; i++) variance += (from[i] - mean) * (from[i] - mean);
		float r = rstd.at[row] = 1 / sqrtf(variance / width + epsilon);
		for (int64_t i = 0; i < width; i++) to[i] = (from[i] - mean) * r * scale.at[i] + shift.at[i];
	}
	return NULL;
}`

type layerNorm func(y, rstd, x, scale, shift []float32, epsilon float32) error

const epsilon = 1e-5

// normGraph is the same as operations of the graph.
func normGraph(in []*graph.Node) []*graph.Node {
	x, scale, shift := in[0], in[1], in[2]
	last := x.Rank() - 1
	centred := graph.Sub(x, graph.ReduceAndKeep(x, graph.ReduceMean, last))
	variance := graph.ReduceAndKeep(graph.Square(centred), graph.ReduceMean, last)
	rstd := graph.Reciprocal(graph.Sqrt(graph.AddScalar(variance, epsilon)))
	along := func(v *graph.Node) *graph.Node { return graph.ExpandLeftToRank(v, x.Rank()) }
	y := graph.Add(graph.Mul(graph.Mul(centred, rstd), along(scale)), along(shift))
	return []*graph.Node{y, graph.Reshape(rstd, x.Shape().Dimensions[:last]...)}
}

// bound limits the difference of two layer norms in float32, of normal numbers in rows of up to 1000. Sums of n numbers
// have errors of n·2⁻²⁴ at worst and √n·2⁻²⁴ in practice (Higham, Accuracy and Stability of Numerical Algorithms,
// section 4.2): 2e-6 relative to sums of about 1; y is at most about 5·|scale| + |shift| ≤ 20.
const bound = 1e-4

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i]-want[i])) <= bound) {
			t.Fatalf("%s: element %d is %g, want %g", what, i, got[i], want[i])
		}
	}
}

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// The function writes into a device's memory what the graph computes there; and a program reads it.
func TestOnDeviceMemory(t *testing.T) {
	var norm layerNorm
	load(t, layerNormSource, native.Bind("layer_norm", &norm))
	const devices, rows, width = 2, 6, 100 // rows of all devices
	mesh := must.Get(devicetest.Open(t, devices).Mesh(xla.Axis("data", devices)))(t)
	r := rand.New(rand.NewPCG(3, 4))
	x, scale, shift := normal(r, rows*width), normal(r, width), normal(r, width)
	cut := xla.Shard(0, "data")
	placed := must.Get(mesh.Place(tensors.FromFlatDataAndDimensions(x, rows, width), cut))(t)
	y := must.Get(mesh.Place(tensors.FromShape(shapes.Make(dtypes.Float32, rows, width)), cut))(t)
	for device, shard := range placed.Shards() {
		from := must.Get(xla.View[float32](shard))(t)
		to := must.Get(xla.View[float32](y.Shards()[device]))(t)
		must.Do(t, norm(to, make([]float32, rows/devices), from, scale, shift, epsilon))
	}
	distance := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{graph.Sub(in[3], normGraph(in)[0])}
	}, xla.In(cut, xla.Replicated(), xla.Replicated(), cut).Gives(cut)))(t)
	defer distance.Close()
	apart := must.Get(must.Get(distance.Call(placed, scale, shift, y))(t)[0].Merge())(t)
	near(t, "distance to the graph's", tensors.MustCopyFlatData[float32](apart), make([]float32, rows*width))
	wants(t, norm(make([]float32, 3), nil, x, scale, shift, epsilon), "layer_norm: the lengths do not fit")
}

// kernelOf loads a source and makes a kernel of one of its functions.
func kernelOf[F any](t *testing.T, source, name string) *xla.Kernel {
	t.Helper()
	return must.Get(load(t, source, native.Bind(name, new(F))).Kernel(name))(t)
}

// refuse stands for what a kernel must not need.
func refuse([]*graph.Node) []*graph.Node { panic("the kernel is not called") }

// normKernel is the layer norm as calls of a kernel.
func normKernel(k *xla.Kernel, otherwise func([]*graph.Node) []*graph.Node) func([]*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		x := in[0]
		rows := shapes.Make(x.DType(), x.Shape().Dimensions[:x.Rank()-1]...)
		in = append(in[:3:3], graph.Scalar(x.Graph(), x.DType(), epsilon))
		return k.Call(in, []shapes.Shape{x.Shape(), rows}, otherwise)
	}
}

// The same function inside a program, between operations, for some shapes, is what GoMLX's own backend computes.
func TestInProgram(t *testing.T) {
	k := kernelOf[layerNorm](t, layerNormSource, "layer_norm")
	r := rand.New(rand.NewPCG(5, 6))
	for _, dims := range [][]int{{1, 1}, {3, 1000}, {2, 3, 17}} {
		width := dims[len(dims)-1]
		shape := shapes.Make(dtypes.Float32, dims...)
		x, scale, shift := normal(r, shape.Size()), normal(r, width), normal(r, width)
		call := func(backend compute.Backend, fn func([]*graph.Node) []*graph.Node) [][]float32 {
			out, err := devicetest.CallOn(backend, fn, tensors.FromFlatDataAndDimensions(x, dims...),
				tensors.FromValue(scale), tensors.FromValue(shift))
			if err != nil {
				t.Fatalf("%v: %v", dims, err)
			}
			return [][]float32{tensors.MustCopyFlatData[float32](out[0]), tensors.MustCopyFlatData[float32](out[1])}
		}
		around := func(fn func([]*graph.Node) []*graph.Node) func([]*graph.Node) []*graph.Node {
			return func(in []*graph.Node) []*graph.Node {
				out := fn([]*graph.Node{graph.MulScalar(in[0], 2), in[1], in[2]})
				return []*graph.Node{graph.AddScalar(out[0], 1), out[1]}
			}
		}
		want := call(devicetest.PureGo(), around(normGraph))
		for what, got := range map[string][][]float32{
			"the kernel":         call(devicetest.One(), around(normKernel(k, refuse))),
			"what stands for it": call(devicetest.PureGo(), around(normKernel(k, normGraph))),
		} {
			near(t, what+"'s y", got[0], want[0])
			near(t, what+"'s 1/σ", got[1], want[1])
		}
	}
}

// Two sources may have functions of one name, and half precision arrives as its bits.
func TestKernelsOfOneName(t *testing.T) {
	type half func(y, z, x []uint16)
	negate := kernelOf[half](t, `void half(slice_u16 y, slice_u16 z, slice_u16 x) {
		for (int64_t i = 0; i < x.n; i++) y.at[i] = x.at[i] ^ 0x8000, z.at[i] = x.at[i];
	}`, "half")
	clear := kernelOf[half](t, `void half(slice_u16 y, slice_u16 z, slice_u16 x) {
		for (int64_t i = 0; i < x.n; i++) y.at[i] = 0, z.at[i] = x.at[i];
	}`, "half")
	for _, dtype := range []dtypes.DType{dtypes.Float16, dtypes.BFloat16} {
		out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			x := graph.ConvertDType(in[0], dtype)
			two := []shapes.Shape{x.Shape(), x.Shape()}
			a, b := negate.Call([]*graph.Node{x}, two, refuse), clear.Call([]*graph.Node{x}, two, refuse)
			sum := graph.Add(graph.Add(a[0], a[1]), graph.Add(b[0], b[1])) // -x + x + 0 + x
			return []*graph.Node{graph.ConvertDType(sum, dtypes.Float32), graph.ConvertDType(a[0], dtypes.Float32)}
		}, tensors.FromValue([]float32{1.5, -4})))(t)
		near(t, dtype.String(), tensors.MustCopyFlatData[float32](out[0]), []float32{1.5, -4})
		near(t, dtype.String(), tensors.MustCopyFlatData[float32](out[1]), []float32{-1.5, 4})
	}
}

// A call that the function does not take is an error of the program, with the reason.
func TestKernelCallErrors(t *testing.T) {
	k := kernelOf[layerNorm](t, layerNormSource, "layer_norm")
	for _, c := range []struct {
		name, want string
		change     func(in []*graph.Node) []*graph.Node
	}{
		{"too few", "6 parameters, the call 2 results and 3 operands",
			func(in []*graph.Node) []*graph.Node { return in[:3] }},
		{"type", "parameter 3 has elements of another type", func(in []*graph.Node) []*graph.Node {
			in[1] = graph.ConvertDType(in[1], dtypes.Float64)
			return in
		}},
		{"no scalar", "parameter 5 is a number", func(in []*graph.Node) []*graph.Node {
			in[3] = graph.Reshape(in[3], 1)
			return in
		}},
		{"message", "the lengths do not fit", func(in []*graph.Node) []*graph.Node {
			in[1] = graph.Concatenate([]*graph.Node{in[1], in[1]}, 0)
			return in
		}},
	} {
		_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			in = c.change(append(in, graph.Scalar(in[0].Graph(), dtypes.Float32, epsilon)))
			x := in[0].Shape()
			return k.Call(in, []shapes.Shape{x, shapes.Make(dtypes.Float32, x.Dim(0))}, refuse)
		}, tensors.FromFlatDataAndDimensions(make([]float32, 6), 2, 3), tensors.FromValue(make([]float32, 3)),
			tensors.FromValue(make([]float32, 3)))
		must.Refuse(t, c.name, err, c.want)
	}
}

func TestKernelErrors(t *testing.T) {
	var norm layerNorm
	_, err := load(t, layerNormSource, native.Bind("layer_norm", &norm)).Kernel("layer")
	wants(t, err, `"layer" is not bound`)
	for _, bind := range []native.Option{
		native.Bind("f", new(func(*float32))), native.Bind("f", new(func(*float32, []float32))),
	} {
		l := must.Get(native.Load(`void f() {}`, native.WithCache(kept), bind))(t)
		_, err = l.Kernel("f")
		wants(t, err, "f, a func(*float32", "slices and numbers")
	}
}
