package autodiff_test

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
)

// The gradient of log(1+eˣ) that GoMLX would derive, eˣ/(1+eˣ), is NaN where eˣ overflows. This one is not
// (the example of JAX's documentation).
func ExampleCustom() {
	softplus := func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{graph.Log(graph.OnePlus(graph.Exp(in[0])))}
	}
	exec := must.Value(graph.NewExec(devicetest.PureGo(), func(x *graph.Node) []*graph.Node {
		stable := autodiff.Custom([]*graph.Node{x}, softplus, func(in, _, v []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Mul(v[0], graph.Sub(graph.OnesLike(in[0]),
				graph.Reciprocal(graph.OnePlus(graph.Exp(in[0])))))}
		})[0]
		derived := softplus([]*graph.Node{x})[0]
		return []*graph.Node{graph.Gradient(derived, x)[0], graph.Gradient(stable, x)[0]}
	}))
	defer exec.Finalize()
	out := must.Value(exec.Call(float32(100)))
	fmt.Println(out[0].Value(), out[1].Value())
	// Output: NaN 1
}

// The gradient of tanh(x·w) in two programs: the matmul is saved, and tanh, which is cheap, is recomputed.
func ExampleSplit() {
	layer := autodiff.Split{
		Fn: func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Tanh(graph.Dot(in[0], in[1]).Product())}
		},
		Of: []int{1},
	}
	x, w := tensors.FromValue([][]float32{{1, 2}}), tensors.FromValue([][]float32{{0}, {0}})

	outputs := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		out, kept := layer.Forward(in)
		return append(out, kept...)
	}, x, w))
	y, product := outputs[0], outputs[1]
	fmt.Println("output", y.Value(), "saved", product.Value())

	arriving := tensors.FromValue([][]float32{{10}})
	gradients := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return layer.Backward(in[:2], in[2:3], in[3:])
	}, x, w, product, arriving))
	fmt.Println("gradient", gradients[0].Value())
	// Output:
	// output [[0]] saved [[0]]
	// gradient [[10] [20]]
}
