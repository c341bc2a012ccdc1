package recompute

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// Call returns fn of the inputs, and has the backward pass make again what fn makes of them: the inputs and outputs are
// kept, and nothing between. It is JAX's jax.checkpoint (https://docs.jax.dev/en/latest/gradient-checkpointing.html).
//
// What fn takes from elsewhere, such as parameters, is kept as ever and gets its gradients, and what depends on nothing
// else is kept with it: give the key of random bits as an input, or the compiler decides about the bits.
//
// A Call inside fn keeps its inputs and outputs, too, and what fn makes of these outputs alone is no longer made again:
// put calls one after another rather than inside each other.
//
// It builds a graph, and panics without inputs, on nil ones and where fn does.
func Call(fn func(in []*graph.Node) []*graph.Node, in ...*graph.Node) []*graph.Node {
	if len(in) == 0 {
		panic(errors.New("recompute: Call of no inputs: give what its function is to be made again from"))
	}
	from := make([]*graph.Node, len(in))
	for i, x := range in {
		if x == nil {
			panic(fmt.Errorf("recompute: input %d of Call is nil", i))
		}
		from[i] = checkpoint(x)
	}
	made := fn(from)
	out := make([]*graph.Node, len(made))
	for i, y := range made {
		if y == nil {
			panic(fmt.Errorf("recompute: output %d of Call's function is nil", i))
		}
		out[i] = y.StopCheckpoint()
	}
	return out
}

// checkpoint is x.Checkpoint, which would lose a custom gradient of x itself, or its being a StopGradient
// (docs/upstream.md, "custom gradients before Checkpoint"). Two changes of shape, which cost nothing, stand between.
func checkpoint(x *graph.Node) *graph.Node {
	dims := x.Shape().Dimensions
	return graph.Reshape(graph.Reshape(x, append(slices.Clone(dims), 1)...), dims...).Checkpoint()
}
