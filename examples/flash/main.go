// Flash computes causal flash attention and its gradients, and compares results and memory with plain attention.
package main

import (
	"fmt"
	"math"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

const tokens, heads, width = 1024, 2, 32

// naive is softmax(q·kᵀ/√width)·v with a causal mask. All arrays are (batch, tokens, heads, width).
func naive(q, k, v *graph.Node) *graph.Node {
	scores := graph.MulScalar(graph.Einsum("bthd,bshd->bhts", q, k), 1/math.Sqrt(width))
	seen := graph.ExpandLeftToRank(graph.LowerTriangular(q.Graph(), tokens), 4)
	return graph.Einsum("bhts,bshd->bthd", graph.MaskedSoftmax(scores, graph.BroadcastToShape(seen, scores.Shape())), v)
}

func flashed(q, k, v *graph.Node) *graph.Node { return flash.Attention(q, k, v, flash.Causal()) }

func main() {
	backend := notebook.Must(xla.Open(xla.Devices(1)))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("data", 1)))
	numbers := make([]float32, tokens*heads*width)
	for i := range numbers {
		numbers[i] = float32(math.Sin(float64(i * i)))
	}
	x := tensors.FromFlatDataAndDimensions(numbers, 1, tokens, heads, width)

	var gradients [2][]float32
	var bytes [2]int64
	for i, attention := range []func(q, k, v *graph.Node) *graph.Node{naive, flashed} {
		program := notebook.Must(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
			y := attention(x, graph.Sin(x), graph.Cos(x))
			return graph.Gradient(graph.ReduceAllSum(graph.Square(y)), x)[0]
		}, xla.In(xla.Replicated()).Gives(xla.Replicated())))
		outputs := notebook.Must(program.Call(x))
		gradients[i] = notebook.Must(tensors.CopyFlatData[float32](outputs[0].Shards()[0]))
		bytes[i] = notebook.Must(program.Memory()).Temporary // XLA's plan, without inputs and outputs
	}
	var apart float64
	for i := range gradients[0] {
		apart = max(apart, math.Abs(float64(gradients[0][i]-gradients[1][i])))
	}
	fmt.Println("equal gradients, up to rounding:", apart < 1e-4)
	fmt.Println("less than a tenth of the memory:", bytes[1] < bytes[0]/10)
}
