package autodiff_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
)

// numbers makes 0, 1, 2 in a graph, once for a key, and counts how often.
func numbers(g *graph.Graph, key any, built *int) *graph.Node {
	return autodiff.Once(g, key, func() *graph.Node {
		*built++
		return graph.Iota(g, shapes.Make(dtypes.Float32, 3), 0)
	})
}

// TestOnce builds a node once in a graph for each key.
func TestOnce(t *testing.T) {
	type key struct{ n int }
	built := 0
	for graphs := 1; graphs <= 2; graphs++ {
		g := graph.NewGraph(devicetest.PureGo(), "")
		first := numbers(g, key{1}, &built)
		if again := numbers(g, key{1}, &built); again != first {
			t.Error("a second node for one key")
		}
		if other := numbers(g, key{2}, &built); other == first {
			t.Error("one node for two keys")
		}
		if want := 2 * graphs; built != want {
			t.Errorf("after %d graphs %d nodes are built, want %d", graphs, built, want)
		}
		g.Finalize()
	}
}

// TestOnceInSplit has a Split's function ask for a node that is costly to make, in both passes and in the graph of the
// first before it: it is built in each graph, is not among what the forward pass leaves, and the gradients are those of
// one program.
func TestOnceInSplit(t *testing.T) {
	table := func(g *graph.Graph) *graph.Node {
		return autodiff.Once(g, "table", func() *graph.Node {
			n := graph.AddScalar(graph.Iota(g, shapes.Make(dtypes.Float32, 2, 2), 0), 1)
			return graph.Dot(n, n).Product()
		})
	}
	of := piece{fn: func(in nodes) nodes {
		return nodes{graph.Tanh(graph.Dot(in[0], table(in[0].Graph())).Product())}
	}, in: []*tensors.Tensor{tensors.FromValue([][]float32{{0.25, -0.5}, {1, 0.125}})},
		v: []*tensors.Tensor{tensors.FromValue([][]float32{{1, 2}, {3, 4}})}}
	on := devicetest.PureGo()
	forward := run(t, on, "once_forward", func(in nodes) nodes {
		table(in[0].Graph())
		return of.forward(in)
	}, of.in...)
	if len(forward) != 2 { // the output, and the one product of the input
		t.Fatalf("the forward pass returns %d values, want 2", len(forward))
	}
	got := run(t, on, "once_backward", of.backward, slices.Concat(of.in, forward[1:], of.v)...)
	if want := of.inOne(t, on)[1]; !got[0].Equal(want) {
		t.Errorf("the gradient is %v, want %v", got[0], want)
	}
}
