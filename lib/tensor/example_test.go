package tensor_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

// The pair of layers of the examples: Z = relu(X·A)·B.
var (
	inputX  = [][][]float32{{{1, 2}}} // (B,T,C): one token
	firstA  = [][]float32{{1, 3, -1, 0, 3, -2}, {1, -1, 0, 2, -1, 2}}
	secondB = [][]float32{{1, 0}, {0, 1}, {1, 1}, {1, -1}, {2, 0}, {0, 3}}
	tree    = params.Tree{params.New("a", dtypes.Float32, 2, 6), params.New("b", dtypes.Float32, 6, 2)}
	rules   = tensor.Rules{{Name: "a", Cut: tensor.Even(1)}, {Name: "b", Cut: tensor.Even(0)}}
)

func relu(x *graph.Node) *graph.Node { return graph.Max(x, graph.ZerosLike(x)) }

// two opens two devices along the axis "tensor".
func two() (mesh *xla.Mesh, done func()) {
	backend := must(xla.Open(xla.Devices(2), xla.Plugin("cpu")))
	mesh = must(backend.Mesh(xla.Axis("tensor", 2)))
	return mesh, backend.Close
}

// row is the only row of device d's shard.
func row(of *dtensor.Tensor, d int) []float32 { return of.Shards()[d].Value().([][][]float32)[0][0] }

// A pair of layers on two devices: each has half of A's columns and the same half of B's rows. Its columns of Y =
// relu(X·A) are all that it needs for its term of the sum Z = Y·B.
func Example() {
	mesh, done := two()
	defer done()
	group := tensor.Group{Axis: "tensor"}
	p := must(xla.Compile(mesh, func(x, a, b *graph.Node) (y, part, z *graph.Node) {
		y = relu(group.Columns(x, []*graph.Node{a}, dot)[0])
		part = dot(y, b)
		return y, part, group.Leave(part) // group.Rows is these two
	}, xla.In(xla.Replicated(), xla.Shard(1, "tensor"), xla.Shard(0, "tensor")).
		Gives(xla.Shard(2, "tensor"), xla.Shard(2, "tensor"), xla.Shard(0, "tensor"))))
	out := must(p.Call(inputX, firstA, secondB))
	for d := range 2 {
		fmt.Printf("device %d: Y%d = %v, Z%d = Y%d·B%d = %v, their sum %v\n", d, d+1, row(out[0], d), d+1, d+1, d+1,
			row(out[1], d), row(out[2], d))
	}
	sent := must(p.Collectives())
	fmt.Println(sent)

	one := must(graph.NewExec(mesh.Backend(), func(x, a, b *graph.Node) *graph.Node { return dot(relu(dot(x, a)), b) }))
	z := must(one.Call(inputX, firstA, secondB))
	fmt.Println("one device: Z =", z[0].Value().([][][]float32)[0][0])
	// Output:
	// device 0: Y1 = [3 1 0], Z1 = Y1·B1 = [3 1], their sum [9 3]
	// device 1: Y2 = [4 1 2], Z2 = Y2·B2 = [6 2], their sum [9 3]
	// all-reduce ×1, 8 B
	// one device: Z = [9 3]
}

// The same with the compiler's own sharding: given the placements of A and B, it finds the one all-reduce.
func ExampleRules_Auto() {
	mesh, done := two()
	defer done()
	place := rules.Auto("tensor", 2)
	p := must(xla.CompileAuto(mesh, func(x, a, b *graph.Node) *graph.Node { return dot(relu(dot(x, a)), b) },
		xla.In(xla.Replicated(), place(0, tree[0]), place(1, tree[1])).Gives(xla.Replicated())))
	out := must(p.Call(inputX, firstA, secondB))
	fmt.Println("Z =", row(out[0], 0), "on one and", row(out[0], 1), "on the other")
	sent := must(p.Collectives())
	fmt.Println(sent)
	// Output:
	// Z = [9 3] on one and [9 3] on the other
	// all-reduce ×1, 8 B
}

func ExampleHeads() {
	// Four query heads and two key heads, each one wide, on four ranks: pairs of ranks have a key head in common.
	cut := must(tensor.Heads(-1, 4, 2, 1)(params.New("qkv.w", dtypes.Float32, 16, 8), 4))
	for rank, columns := range cut.Index {
		fmt.Println("rank", rank, "query", columns[:1], "key", columns[1:2], "value", columns[2:])
	}
	// Output:
	// rank 0 query [0] key [4] value [6]
	// rank 1 query [1] key [4] value [6]
	// rank 2 query [2] key [5] value [7]
	// rank 3 query [3] key [5] value [7]
}
