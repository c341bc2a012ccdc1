package native_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/xla"
)

// onGPU skips a test without a GPU.
func onGPU(t testing.TB) {
	t.Helper()
	if devicetest.Plugin() == string(plugin.CPU) || devicetest.One().Info().Platform != plugin.CUDA {
		systest.Skip(t, systest.NoGPU, "set "+plugin.Env+" to a CUDA plugin")
	}
}

// adder compiles the kernel of a type, for the GPU of this machine.
func adder(t testing.TB, of dtypes.DType) *xla.Kernel {
	t.Helper()
	l := must.Get(native.CompileCUDA(addSource,
		native.Global[func(y, none, a, b f32)](addKernels[0], native.Launch{Grid: "up(n[0], 4*256)", Block: "256"}),
		native.Global[func(y bf16, none f32, a, b bf16)](addKernels[1], native.Launch{Grid: "up(n[0], 8*256)", Block: "256"})))(t)
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
	onGPU(t)
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
				if want := 8*v + 7; y[i] != want && of == dtypes.Float32 || y[i]-want > 1 || want-y[i] > 1 || d[i] != 8 {
					t.Fatalf("%v, %d elements, element %d: %g with gradient %g, want %g and 8", of, n, i, y[i], d[i], want)
				}
			}
		}
	}
}

// With a GPU, a launch that CUDA refuses is the program's error.
func TestGPUKernelError(t *testing.T) {
	onGPU(t)
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
	onGPU(b)
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
