// Allreduce adds up numbers that lie on four devices, inside a compiled graph.
//
// Output:
//
//	device 0 has 204
//	device 1 has 204
//	device 2 has 204
//	device 3 has 204
//	the program's collectives: all-reduce ×1, 4 B
package main

import (
	"fmt"
	"log"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	backend := must(xla.Open(xla.Devices(4))) // GPUs where there are some, else parts of the CPU
	defer backend.Close()
	mesh := must(backend.Mesh(xla.Axis("data", 4)))

	// The graph is that of one device, which sees its own two of the eight numbers. All devices run it, and all get the sum.
	program := must(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		return collective.AllReduce(graph.ReduceAllSum(graph.Square(x)), collective.Sum, "data")
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))

	outputs := must(program.Call([]float32{1, 2, 3, 4, 5, 6, 7, 8}))
	for device, sum := range outputs[0].Shards() {
		fmt.Println("device", device, "has", sum.Value())
	}
	fmt.Println("the program's collectives:", must(program.Collectives()))
}

// must ends the program where a call failed.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
