// Cuda has a gated activation and its gradient as CUDA kernels of its own, which a program on a GPU calls between XLA's
// operations. On CPUs, XLA's operations compute the same.
package main

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

const source = `
__global__ void swiglu(slice_f32 y, slice_f32 nothing, slice_f32 a, slice_f32 b) {
	int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (i < y.n) y.at[i] = a.at[i] / (1 + expf(-a.at[i])) * b.at[i];
}
__global__ void swiglu_gradient(slice_f32 da, slice_f32 db, slice_f32 a, slice_f32 b, slice_f32 dy) {
	int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (i >= da.n) return;
	float share = 1 / (1 + expf(-a.at[i]));
	da.at[i] = dy.at[i] * b.at[i] * share * (1 + a.at[i] * (1 - share));
	db.at[i] = dy.at[i] * a.at[i] * share;
}`

// onGPU is a·sigmoid(a)·b by the kernels.
func onGPU() func(a, b *graph.Node) *graph.Node {
	type f32 = []float32
	launch := native.Launch{Grid: "up(n[0], 256)", Block: "256"} // for n[0] elements of the first parameter
	kernels := notebook.Must(native.CompileCUDA(source, native.Global[func(y, nothing, a, b f32)]("swiglu", launch),
		native.Global[func(da, db, a, b, dy f32)]("swiglu_gradient", launch)))
	forward, backward := notebook.Must(kernels.Kernel("swiglu")), notebook.Must(kernels.Kernel("swiglu_gradient"))
	return func(a, b *graph.Node) *graph.Node {
		one := []shapes.Shape{a.Shape(), shapes.Make(dtypes.Float32, 0)} // a call has two results at least
		two := []shapes.Shape{a.Shape(), a.Shape()}
		return autodiff.Custom([]*graph.Node{a, b},
			func(in []*graph.Node) []*graph.Node { return forward.Call(in, one, nil) },
			func(in, _, v []*graph.Node) []*graph.Node { return backward.Call(append(in, v[0]), two, nil) })[0]
	}
}

func main() {
	backend := notebook.Must(xla.Open(xla.Devices(1)))
	defer backend.Close()
	swiglu := func(a, b *graph.Node) *graph.Node { return graph.Mul(graph.Mul(a, graph.Sigmoid(a)), b) }
	if backend.Info().Platform == "cuda" {
		swiglu = onGPU()
	}
	out := notebook.Must(graph.CallOnceN(backend, func(a, b *graph.Node) []*graph.Node {
		y := swiglu(a, b)
		return append([]*graph.Node{y}, graph.Gradient(graph.ReduceAllSum(y), a, b)...)
	}, []float32{-2, 0, 3}, []float32{1, 2, 3}))
	fmt.Printf("swiglu: %.4f\ngradients: %.4f %.4f\n", out[0].Value(), out[1].Value(), out[2].Value())
}
