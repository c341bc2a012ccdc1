package flash_test

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
)

// Three tokens, one head of width 2. The first token sees only itself, so its output is its value.
func ExampleAttention() {
	x := graph.MustNewExec(devicetest.One(), func(q, k, v *graph.Node) *graph.Node {
		token := func(x *graph.Node) *graph.Node { return graph.Reshape(x, 1, 3, 1, 2) } // (B,T,H,D)
		return graph.Reshape(flash.Attention(token(q), token(k), token(v), flash.Causal()), 3, 2)
	})
	out := x.MustCall([][]float32{{1, 0}, {0, 1}, {1, 1}}, [][]float32{{1, 0}, {0, 1}, {1, 1}},
		[][]float32{{1, 2}, {3, 4}, {5, 6}})[0]
	for _, row := range out.Value().([][]float32) {
		fmt.Printf("%.4f\n", row)
	}
	// Output:
	// [1.0000 2.0000]
	// [2.3395 3.3395]
	// [3.5105 4.5105]
}

// Merging the attention to two halves of the keys gives the attention to all.
func ExamplePartial_Merge() {
	x := graph.MustNewExec(devicetest.One(), func(x *graph.Node) *graph.Node {
		half := func(i int) *graph.Node { return graph.Slice(x, graph.AxisRange(), graph.AxisRange(4*i, 4*i+4)) }
		a := flash.Attend(x, half(0), half(0), flash.Options{})
		b := flash.Attend(x, half(1), half(1), flash.Options{})
		all := flash.Attention(x, x, x, flash.Options{})
		return graph.ReduceAllMax(graph.Abs(graph.Sub(a.Merge(b).Output(x.DType()), all)))
	})
	var flat []float32
	for i := range 64 {
		flat = append(flat, float32(i%7)-3)
	}
	in := tensors.FromFlatDataAndDimensions(flat, 1, 8, 2, 4)
	fmt.Println("equal to rounding:", x.MustCall(in)[0].Value().(float32) < 1e-6)
	// Output: equal to rounding: true
}
