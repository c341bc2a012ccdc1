// Allreduce sums numbers over four devices, inside a compiled graph.
package main

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	backend := notebook.Must(xla.Open(xla.Devices(4))) // GPUs if there are any, else CPU devices
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("data", 4)))

	// Each device runs this graph on its shard, two of the eight numbers, and gets the sum of all.
	program := notebook.Must(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		return collective.AllReduce(graph.ReduceAllSum(graph.Square(x)), collective.Sum, "data")
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))

	outputs := notebook.Must(program.Call([]float32{1, 2, 3, 4, 5, 6, 7, 8}))
	for device, sum := range outputs[0].Shards() {
		fmt.Println("device", device, "has", sum.Value())
	}
	fmt.Println("the program's collectives:", notebook.Must(program.Collectives()))
}
