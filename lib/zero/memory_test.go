package zero_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// deep is a chain of equal blocks, and a last one without parameters, whose inputs and outputs are vectors of the width.
func deep(blocks, width int) chain.Model {
	m := chain.Model{Criterion: func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}}
	for i := range blocks {
		name := fmt.Sprintf("h%d.w", i)
		m.Blocks = append(m.Blocks, chain.Block{Name: name[:len(name)-2], Kind: "h", Params: params.Tree{params.New(name, dtypes.Float32, width, width)},
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				return graph.Add(x, graph.Tanh(graph.Dot(x, p.Get(name)).Product()))
			}})
	}
	m.Blocks = append(m.Blocks, chain.Block{Name: "loss", Apply: func(_ params.Nodes, x, _, _ *graph.Node) *graph.Node { return x }})
	m.Initial = func() (values []*tensors.Tensor, err error) {
		for i := range blocks {
			flat := make([]float32, width*width)
			for k := range flat {
				flat[k] = float32((k*7+i)%13-6) / float32(width)
			}
			values = append(values, tensors.FromFlatDataAndDimensions(flat, width, width))
		}
		return values, nil
	}
	return m
}

func TestProbeMemory(t *testing.T) {
	const width, world = 64, 4
	backend := devicetest.Open(t, world)
	mesh, err := backend.Mesh(xla.Axis(train.Axis, world))
	if err != nil {
		t.Fatal(err)
	}
	x := tensors.FromFlatDataAndDimensions(make([]float32, world*width), world, width)
	for _, o := range []zero.Options{{Stage: 1}, {Stage: 2}, {Stage: 3}, {Stage: 3, Prefetch: 1}, {Stage: 3, Prefetch: 2}, {Stage: 3, Recompute: true}} {
		for _, depth := range []int{4, 8, 16} {
			run, err := zero.New(mesh, train.Recipe{Model: deep(depth, width), Rule: optim.SGD(0.1)}, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Prepare(x, x); err != nil {
				t.Fatal(err)
			}
			m, err := run.Memory()
			if err != nil {
				t.Fatal(err)
			}
			one := int64(width * width * 4)
			rep, _ := run.Collectives()
			fmt.Printf("%+v %d: temp %.2f blocks; shards of gradients %.2f; %v\n", o, depth, float64(m.Temporary)/float64(one), float64(depth)/world, rep)
			run.Close()
		}
	}
	for _, stage := range []int{1, 3} {
		run, err := zero.NewAuto(mesh, train.Recipe{Model: deep(8, width), Rule: optim.SGD(0.1)}, stage)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Step(x, x); err != nil {
			t.Fatal(err)
		}
		m, _ := run.Memory()
		rep, _ := run.Collectives()
		fmt.Println("auto", stage, float64(m.Temporary)/float64(width*width*4), rep)
	}
}
