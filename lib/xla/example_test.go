package xla_test

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

// Four devices each square their shard of a vector, and an all-reduce sums the shards on all of them.
func Example() {
	backend := notebook.Must(xla.Open(xla.Devices(4), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("data", 4)))
	norm := notebook.Must(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		part := graph.ReduceAllSum(graph.Square(x)) // of this device's 2 elements
		return collective.AllReduce(part, collective.Sum, "data")
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))
	out := notebook.Must(norm.Call([]float32{1, 2, 3, 4, 5, 6, 7, 8}))
	for device, sum := range out[0].Shards() {
		fmt.Println("device", device, "has", sum.Value())
	}
	// Output:
	// device 0 has 204
	// device 1 has 204
	// device 2 has 204
	// device 3 has 204
}

func ExamplePlacement() {
	fmt.Println(xla.Replicated())
	fmt.Println(xla.Shard(0, "data"))
	fmt.Println(xla.Shard(0, "data").And(1, "tensor", "seq"))
	// Output:
	// Replicated()
	// Shard(0, "data")
	// Shard(0, "data").And(1, "tensor", "seq")
}
