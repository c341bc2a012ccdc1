package collective_test

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

// onRanks runs a graph function on three devices, each with its row of x, and prints each result. The numbers are those
// of Hugging Face's "Ultra-Scale Playbook", appendix A0.
func onRanks(f func(x *graph.Node) *graph.Node, x [][]float32) {
	backend := notebook.Must(xla.Open(xla.Devices(3), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("data", 3)))
	p := notebook.Must(xla.Compile(mesh, f, xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))
	out := notebook.Must(p.Call(x))
	for rank, shard := range out[0].Shards() {
		fmt.Println("rank", rank, shard.Value().([][]float32)[0])
	}
}

func ExampleAllReduce() {
	onRanks(func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, "data") },
		[][]float32{{1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}, {3, 3, 3, 3, 3}})
	// Output:
	// rank 0 [6 6 6 6 6]
	// rank 1 [6 6 6 6 6]
	// rank 2 [6 6 6 6 6]
}

func ExampleAllGather() {
	onRanks(func(x *graph.Node) *graph.Node { return collective.AllGather(x, 1, "data") },
		[][]float32{{1, 1}, {2, 2}, {3, 3}})
	// Output:
	// rank 0 [1 1 2 2 3 3]
	// rank 1 [1 1 2 2 3 3]
	// rank 2 [1 1 2 2 3 3]
}

// Rank r sends ((r+1)·i)^(j+1) for i = 1, 2 to rank j. The book has one list for each target; here they are
// concatenated.
func ExampleReduceScatter() {
	onRanks(func(x *graph.Node) *graph.Node { return collective.ReduceScatter(x, collective.Sum, 1, "data") },
		[][]float32{{1, 2, 1, 4, 1, 8}, {2, 4, 4, 16, 8, 64}, {3, 6, 9, 36, 27, 216}})
	// Output:
	// rank 0 [6 12]
	// rank 1 [14 56]
	// rank 2 [36 288]
}

// The backward pass of an all-gather is a reduce-scatter: each rank's x is in every rank's loss, so its gradient is the
// sum over all of them.
func ExampleAllGather_gradient() {
	onRanks(func(x *graph.Node) *graph.Node {
		all := collective.AllGather(x, 1, "data")
		weight := graph.AddScalar(graph.ConvertDType(collective.Rank(x.Graph(), "data"), x.DType()), 1)
		loss := graph.Mul(weight, graph.ReduceAllSum(all)) // of rank r: (r+1) times the sum
		return graph.Gradient(loss, x)[0]
	}, [][]float32{{10}, {20}, {30}})
	// Output:
	// rank 0 [6]
	// rank 1 [6]
	// rank 2 [6]
}
