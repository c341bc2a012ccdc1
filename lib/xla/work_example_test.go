package xla_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

// The work of a program: here a matmul of [64 64] by [64 16] on each of two devices.
func ExampleProgram_Work() {
	backend := notebook.Must(xla.Open(xla.Devices(2), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis("tensor", 2)))
	p := notebook.Must(xla.Compile(mesh, func(x, w *graph.Node) *graph.Node { return graph.Dot(x, w).Product() },
		xla.In(xla.Replicated(), xla.Shard(1, "tensor")).Gives(xla.Shard(1, "tensor"))))
	notebook.Check(p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 64, 64)),
		tensors.FromShape(shapes.Make(dtypes.Float32, 64, 32))))
	work := notebook.Must(p.Work())
	fmt.Println(work.FLOPs, work.Bytes)
	operations := notebook.Must(p.Operations())
	for _, o := range operations {
		fmt.Println(o.Kind, o.FLOPs/float64(o.Bytes), "FLOPs a byte")
	}
	// Output:
	// 131072 24576
	// dot 5.333333333333333 FLOPs a byte
}
