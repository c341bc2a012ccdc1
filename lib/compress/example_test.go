package compress_test

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/precision"
)

// The memory of a layer's saved input: 1024 tokens of width 768, in MB.
func Example() {
	shape := shapes.Make(dtypes.Float32, 1024, 768)
	for _, name := range []string{"dense", "fp16", "fp10", "e4m3", "int8:64", "csr:0.5"} {
		codec := notebook.Must(compress.Parse(name))
		fmt.Printf("%-8s %.3f\n", codec.Name(), float64(codec.Bytes(shape))/1e6)
	}
	fmt.Printf("%-8s %.3f (a ReLU's)\n", "sign", float64(compress.Sign().Bytes(shape))/1e6)
	// Output:
	// dense    3.146
	// fp16     1.573
	// fp10     1.049
	// e4m3     0.786
	// int8:64  0.836
	// csr:0.5  1.978
	// sign     0.098 (a ReLU's)
}

// The output is exact. The gradient of w uses the x that E4M3 can represent: 1.125, not 1.1.
func ExampleDot() {
	codec := notebook.Must(compress.Parse("e4m3"))
	exec := notebook.Must(graph.NewExec(devicetest.PureGo(), func(x, w *graph.Node) []*graph.Node {
		y := compress.ReLU(compress.Dot(x, w, codec, precision.Matmul{}))
		return append([]*graph.Node{y}, graph.Gradient(graph.ReduceAllSum(y), x, w)...)
	}))
	defer exec.Finalize()
	out := notebook.Must(exec.Call([][]float32{{1.1}}, [][]float32{{2}}))
	fmt.Println("y", out[0].Value(), "dx", out[1].Value(), "dw", out[2].Value())
	// Output: y [[2.2]] dx [[2]] dw [[1.125]]
}

// -0 is not +0.
func ExampleEncodeSparse() {
	values := make([]float32, 1000)
	values[7], values[900] = 1.5, float32(math.Copysign(0, -1))
	data := compress.EncodeSparse(values)
	again := notebook.Must(compress.DecodeSparse(data))
	fmt.Println(len(data), "bytes instead of", 4*len(values))
	fmt.Println(again[7], again[8], again[900])
	fmt.Printf("CSR pays below a density of %.3f\n", compress.BreakEven(4))
	// Output:
	// 35 bytes instead of 4000
	// 1.5 0 -0
	// CSR pays below a density of 0.797
}
