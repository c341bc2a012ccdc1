package native_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/notebook"
)

// A function of C, with its check of lengths, on Go's memory. A device's own memory is xla.View's slice.
func Example() {
	var axpy func(y, x []float32, a float32) error
	_, err := native.Load(`
const char *axpy(slice_f32 y, slice_f32 x, float a) {
	if (y.n != x.n) return "x and y differ in length";
	for (int64_t i = 0; i < y.n; i++) y.at[i] += a * x.at[i];
	return NULL;
}`, native.Bind("axpy", &axpy))
	notebook.Check(err)
	y := []float32{1, 2, 3}
	fmt.Println(axpy(y, []float32{10, 20, 30}, 0.5), y)
	fmt.Println(axpy(y, nil, 0.5))

	_, err = native.Load("int a;\nint b = 1 +;\n")
	fmt.Println(err != nil)
	// Output:
	// <nil> [6 12 18]
	// native: axpy: x and y differ in length
	// true
}

// The same kind of function inside a program: results come first, then operands.
func ExampleLibrary_Kernel() {
	var polar func(radius, angle, x, y []float32) error
	lib := notebook.Must(native.Load(`
#include <math.h>
const char *polar(slice_f32 radius, slice_f32 angle, slice_f32 x, slice_f32 y) {
	if (x.n != y.n || radius.n != x.n || angle.n != x.n) return "the lengths differ";
	for (int64_t i = 0; i < x.n; i++) {
		radius.at[i] = hypotf(x.at[i], y.at[i]);
		angle.at[i] = atan2f(y.at[i], x.at[i]);
	}
	return NULL;
}`, native.Bind("polar", &polar)))
	kernel := notebook.Must(lib.Kernel("polar"))
	out := notebook.Must(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		x := shapes.Make(dtypes.Float32, in[0].Shape().Dimensions...)
		out := kernel.Call(in, []shapes.Shape{x, x}, func(in []*graph.Node) []*graph.Node {
			radius := graph.Sqrt(graph.Add(graph.Square(in[0]), graph.Square(in[1])))
			return []*graph.Node{radius, graph.Atan2(in[1], in[0])} // where XLA cannot call C
		})
		return []*graph.Node{graph.MulScalar(out[0], 2)}
	}, tensors.FromValue([]float32{3, 5}), tensors.FromValue([]float32{4, 12})))
	fmt.Println(out[0].Value())
	// Output: [10 26]
}

// A kernel for GPUs inside a program: this is not run, since it needs one.
func ExampleCompileCUDA() {
	lib := notebook.Must(native.CompileCUDA(`
template <class T> __global__ void polar(slice<T> radius, slice<T> angle, slice<T> x, slice<T> y) {
	int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (i >= x.n) return;
	radius.at[i] = hypotf(x.at[i], y.at[i]);
	angle.at[i] = atan2f(y.at[i], x.at[i]);
}`, native.Global[func(radius, angle, x, y []float32)]("polar<float>",
		native.Launch{Grid: "up(n[0], 256)", Block: "256"})))
	kernel := notebook.Must(lib.Kernel("polar<float>"))
	out := notebook.Must(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return kernel.Call(in, []shapes.Shape{in[0].Shape(), in[0].Shape()}, func(in []*graph.Node) []*graph.Node {
			panic("there is no GPU")
		})
	}, tensors.FromValue([]float32{3, 5}), tensors.FromValue([]float32{4, 12})))
	fmt.Println(out[0].Value()) // [5 13]
}

func ExampleNCU() {
	fmt.Println(native.NCU("layer_norm", "norm", "./train", "--text", "don't stop"))
	// Output: ncu --set full --import-source yes --target-processes all --force-overwrite --export norm --kernel-name layer_norm ./train --text 'don'\''t stop'
}

func ExamplePerf() {
	fmt.Println(native.Perf("layer_norm", "perf.data", "./train", "a b"))
	// Output: perf record --output perf.data -- ./train 'a b' && perf annotate --stdio --input perf.data --symbol layer_norm
}
