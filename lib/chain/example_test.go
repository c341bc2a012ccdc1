package chain_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
)

// layer is a block by hand: tanh(x·w).
func layer(name string, in, out int) chain.Block {
	return chain.Block{
		Name:   name,
		Params: params.Tree{params.New(name+".w", dtypes.Float32, in, out)},
		Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			return graph.Tanh(graph.Dot(x, p.Get(name+".w")).Product())
		},
	}
}

// A model of one's own as a chain of blocks, which any engine can train: lib/ddp, lib/zero, lib/pipeline, lib/parallel.
func ExampleModel_blocks() {
	m := chain.Model{
		Blocks: []chain.Block{layer("first", 3, 4), layer("last", 4, 1)},
		Criterion: func(y, targets *graph.Node) *graph.Node {
			return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
		},
	}
	m.Initial = func() ([]*tensors.Tensor, error) { return params.Zeros(m.Params()) }
	if err := m.Validate(); err != nil {
		panic(err)
	}
	for _, spec := range m.Params() {
		fmt.Println(spec)
	}
	values, err := m.Init()
	if err != nil {
		panic(err)
	}
	// The model is one graph function, too.
	loss, err := devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{m.Loss(m.Params().Nodes(in[:2]), in[2], in[3])}
	}, append(values, tensors.FromValue([][]float32{{1, 2, 3}}), tensors.FromValue([][]float32{{2}}))...)
	if err != nil {
		panic(err)
	}
	fmt.Println("loss", loss[0].Value())
	// Output:
	// first.w (Float32)[3, 4]
	// last.w (Float32)[4, 1]
	// loss 4
}
