//go:build !resident

package fused

import (
	"sync"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"

	"github.com/shardbook/shardbook/lib/fused/internal/kernel"
	"github.com/shardbook/shardbook/lib/native"
)

// compiled compiles the CUDA kernels when one is first called. A thread has 16 bytes of columns, a block 32 threads
// across.
var compiled = sync.OnceValues(func() (*native.Library, error) {
	type (
		f32  = []float32
		bf16 = []bfloat16.BFloat16
	)
	launch := func(columns, slices string) native.Launch {
		return native.Launch{Grid: "up(n[3], " + columns + "), " + slices, Block: "32, 8"}
	}
	const fourRows, asInTheResult = "min(up(n[2]/n[3], 4*8), 65535)", "n[1]/n[3]" // slices of the rows
	gpu, err := native.FirstGPU()
	if err != nil {
		gpu.Architecture = "sm_90" // any will do: XLA compiles for a GPU that is not here, and calls none
	}
	return native.CompileCUDA(kernel.CUDA, native.Architecture(gpu.Architecture),
		native.Global[func(y, nothing, x, bias f32)]("bias_gelu<float>", launch("128", fourRows)),
		native.Global[func(y bf16, nothing f32, x, bias bf16)]("bias_gelu<__nv_bfloat16>", launch("256", fourRows)),
		native.Global[func(dx, dbias, x, bias, dy f32)]("bias_gelu_gradient<float>", launch("128", asInTheResult)),
		native.Global[func(dx bf16, dbias f32, x, bias, dy bf16)]("bias_gelu_gradient<__nv_bfloat16>",
			launch("256", asInTheResult)))
})

// cudaHandler returns the handler of a function in kernel.CUDA.
func cudaHandler(function string) (unsafe.Pointer, error) {
	library, err := compiled()
	if err != nil {
		return nil, err
	}
	return library.Handler(function)
}
