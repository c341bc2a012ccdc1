// Zero trains a chain of blocks with ZeRO-3 (FSDP) on four devices: each holds a quarter of the parameters and of
// Adam's states, and gathers a block's full parameters only while it computes with them.
package main

import (
	"context"
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// block computes x + tanh(x·w). ZeRO gathers parameters block by block.
func block(name string, width int) chain.Block {
	return chain.Block{
		Name:   name,
		Params: params.Tree{params.New(name+".w", dtypes.Float32, width, width)},
		Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			return graph.Add(x, graph.Tanh(graph.Dot(x, p.Get(name+".w")).Product()))
		},
	}
}

func main() {
	network := chain.Model{Blocks: []chain.Block{block("a", 4), block("b", 4), block("c", 4), block("d", 4)}}
	network.Initial = func() ([]*tensors.Tensor, error) { return params.Zeros(network.Params()) }
	network.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}
	backend := notebook.Must(xla.Open(xla.Devices(4)))
	defer backend.Close()
	recipe := train.Recipe{Model: network, Optimizer: optim.Adam(0.1)}
	run := notebook.Must(zero.NewSPMD(context.Background(), backend, recipe, 4, zero.Options{Stage: 3}))
	defer run.Close()

	inputs := tensors.FromValue([][]float32{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}})
	targets := tensors.FromValue([][]float32{{0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}})
	first := notebook.Must(run.Step(context.Background(), inputs, targets))
	last := first
	for run.Steps() < 100 {
		last = notebook.Must(run.Step(context.Background(), inputs, targets))
	}
	held := run.Memory()
	fmt.Printf("parameters: %d of %d bytes on each device; Adam's states: %d\n", held[memest.Parameters],
		network.Params().Bytes(), held[memest.Optimizer])
	fmt.Println("bytes between the devices in a step:", notebook.Must(run.Traffic())[train.Axis])
	fmt.Printf("loss: %.2f, after %d steps %.2f\n", first.Loss, run.Steps(), last.Loss)
}
