// Allreduce adds up numbers that lie on four devices, inside a compiled graph.
package main

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	backend := notebook.Must(xla.Open(xla.Devices(4))) // GPUs where there are some, else parts of the CPU
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("data", 4)))

	// The graph is that of one device, which sees its own two of the eight numbers. All devices run it, and all get the sum.
	program := notebook.Must(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		return collective.AllReduce(graph.ReduceAllSum(graph.Square(x)), collective.Sum, "data")
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))

	outputs := notebook.Must(program.Call([]float32{1, 2, 3, 4, 5, 6, 7, 8}))
	for device, sum := range outputs[0].Shards() {
		fmt.Println("device", device, "has", sum.Value())
	}
	fmt.Println("the program's collectives:", notebook.Must(program.Collectives()))
}
