package residual_test

import (
	"fmt"
	"log"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

func check[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// Three layers whose inputs are divided between two devices: 64 numbers each, gathered once each for the backward pass.
func ExampleCheckpoint() {
	backend := check(xla.Open(xla.Devices(2), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := check(backend.Mesh(xla.Axis("tensor", 2)))
	layer := func(in []*graph.Node) []*graph.Node { return []*graph.Node{graph.Tanh(in[0])} }
	step := check(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		y := x
		for range 3 {
			y = residual.Checkpoint(layer, "tensor", y)[0]
		}
		return graph.Gradient(graph.ReduceAllSum(y), x)[0]
	}, xla.In(xla.Replicated()).Gives(xla.Replicated())))
	defer step.Close()
	out := check(step.Call(tensors.FromShape(shapes.Make(dtypes.Float32, 8, 8))))
	fmt.Println("the gradient at 0:", tensors.MustCopyFlatData[float32](out[0].Shards()[0])[0])
	sent := check(step.Collectives())
	fmt.Printf("%d all-gathers, %d bytes\n", sent.Of(xla.AllGather).Count, sent.Of(xla.AllGather).Bytes)
	// Output:
	// the gradient at 0: 1
	// 3 all-gathers, 768 bytes
}

// Two checkpoints of 10 bytes are made among temporaries of 30, and then 60 bytes are needed at once.
func ExampleReplay() {
	events := []residual.Event{
		{ID: 1, Bytes: 30}, {ID: 2, Bytes: 10, Long: true}, {ID: 3, Bytes: 30}, {ID: 4, Bytes: 10, Long: true},
		{ID: 1, Free: true}, {ID: 3, Free: true},
		{ID: 5, Bytes: 60},
	}
	r := check(residual.Replay(events, 80))
	fmt.Printf("failed: %v, though %d bytes are free; the largest block has %d\n", r.Failed, r.Free, r.Largest)
	r = check(residual.Replay(check(residual.WithRegion(events)), 80))
	fmt.Printf("with a region failed: %v\n", r.Failed)
	// Output:
	// failed: true, though 60 bytes are free; the largest block has 30
	// with a region failed: false
}
