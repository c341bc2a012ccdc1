package native_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/xla"
)

// adder compiles the kernel of a type: for the GPU of this machine, unless options say another.
func adder(t testing.TB, of dtypes.DType, options ...native.Option) *xla.Kernel {
	t.Helper()
	l := must.Get(native.CompileCUDA(addSource, append(options,
		native.Global[func(y, none, a, b f32)](addKernels[0], native.Launch{Grid: "up(n[0], 4*256)", Block: "256"}),
		native.Global[func(y bf16, none f32, a, b bf16)](addKernels[1], native.Launch{Grid: "up(n[0], 8*256)", Block: "256"}))...))(t)
	name := addKernels[0]
	if of == dtypes.BFloat16 {
		name = addKernels[1]
	}
	return must.Get(l.Kernel(name))(t)
}

// added is a + b by the kernel, with its gradient.
func added(k *xla.Kernel, a, b *graph.Node, otherwise func(in []*graph.Node) []*graph.Node) *graph.Node {
	return autodiff.Custom([]*graph.Node{a, b},
		func(in []*graph.Node) []*graph.Node {
			return k.Call(in, []shapes.Shape{a.Shape(), shapes.Make(dtypes.Float32, 0)}, otherwise)
		},
		func(_, _, v []*graph.Node) []*graph.Node { return []*graph.Node{v[0], v[0]} })[0]
}

// With a GPU, a kernel that NVRTC has compiled runs between XLA's operations, in order with them, and has a gradient.
func TestGPUKernel(t *testing.T) {
	devicetest.GPU(t)
	for _, of := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		k := adder(t, of)
		for _, n := range []int{1, 7, 8, 1000, 4096, 1_000_001} {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i % 32)
			}
			out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
				a := graph.ConvertDType(in[0], of)
				y := a
				for range 3 { // 2x + 1, three times: 8x + 7
					y = graph.OnePlus(added(k, y, y, refuse))
				}
				d := graph.Gradient(graph.ReduceAllSum(y), a)[0]
				return []*graph.Node{graph.ConvertDType(y, dtypes.Float32), graph.ConvertDType(d, dtypes.Float32)}
			}, tensors.FromValue(x)))(t)
			y, d := tensors.MustCopyFlatData[float32](out[0]), tensors.MustCopyFlatData[float32](out[1])
			for i, v := range x {
				want, most := 8*v+7, map[dtypes.DType]float32{dtypes.BFloat16: 1}[of]
				if y[i]-want > most || want-y[i] > most || d[i] != 8 {
					t.Fatalf("%v, %d elements, element %d: %g with gradient %g, want %g and 8", of, n, i, y[i], d[i], want)
				}
			}
		}
	}
}

// XLA compiles programs with such kernels for a GPU that need not be here: it finds their handlers, and calls them.
func TestGPUKernelCompiles(t *testing.T) {
	gpus := devicetest.OpenFor(t, "h100", 1)
	p := must.Get(xla.Compile(must.Get(gpus.Mesh(xla.Axis("x", 1)))(t), func(x *graph.Node) (y, d *graph.Node) {
		a := graph.ConvertDType(x, dtypes.BFloat16)
		y = added(adder(t, dtypes.Float32, native.Architecture("sm_90")), x, graph.Sin(x), refuse)
		z := added(adder(t, dtypes.BFloat16, native.Architecture("sm_90")), a, graph.Transpose(a, 0, 1), refuse)
		d = graph.Gradient(graph.ReduceAllSum(graph.Square(z)), x)[0]
		return graph.Add(y, graph.ConvertDType(z, dtypes.Float32)), d
	}, xla.In(xla.Replicated()).Gives(xla.Replicated(), xla.Replicated())))(t)
	defer p.Close()
	must.Do(t, p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 64, 64))))
	calls := map[string]int{}
	for _, o := range must.Get(p.Operations())(t) {
		if strings.HasPrefix(o.Target, "native") { // native1_add_float_
			calls[strings.TrimLeft(o.Target, "native0123456789")]++
		}
	}
	if want := map[string]int{"_add_float_": 1, "_add___nv_bfloat16_": 1}; !maps.Equal(calls, want) {
		t.Errorf("the compiled program calls %v, want %v", calls, want)
	}
}

// With a GPU, a launch that CUDA refuses is the program's error.
func TestGPUKernelError(t *testing.T) {
	devicetest.GPU(t)
	l := must.Get(native.CompileCUDA(addSource,
		native.Global[func(y, none, a, b f32)](addKernels[0], native.Launch{Grid: "1", Block: "2048"})))(t)
	k := must.Get(l.Kernel(addKernels[0]))(t)
	_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{added(k, in[0], in[0], refuse)}
	}, tensors.FromValue([]float32{1, 2}))
	must.Refuse(t, "2048 threads", err, "CUDA_ERROR_INVALID_VALUE")
}

// BenchmarkCUDAAdd compares the addition of two arrays by the kernel and by XLA: their time, what they read and write a
// second, and its share of what the GPU's memory can.
func BenchmarkCUDAAdd(b *testing.B) {
	devicetest.GPU(b)
	gpu := must.Get(native.FirstGPU())(b)
	for _, of := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		b.Run(fmt.Sprint(of), func(b *testing.B) {
			k, bytes := adder(b, of), 1<<30
			shape := shapes.Make(of, bytes/of.Size())
			two := func(in []*graph.Node) []*graph.Node {
				x := graph.BroadcastToDims(graph.ConvertDType(in[0], of), shape.Dimensions...)
				return []*graph.Node{x, graph.Add(x, x)}
			}
			for range b.N {
				own := devicetest.Seconds(b, devicetest.One(), two, func(in []*graph.Node) []*graph.Node {
					return []*graph.Node{added(k, in[0], in[1], refuse)}
				})
				xlas := devicetest.Seconds(b, devicetest.One(), two, func(in []*graph.Node) []*graph.Node {
					return []*graph.Node{graph.Add(in[0], in[1])}
				})
				devicetest.Compare(b, own, xlas, float64(3*bytes), gpu.Bandwidth)
			}
		})
	}
}
