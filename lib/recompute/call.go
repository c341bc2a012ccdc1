package recompute

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// Call returns fn of the inputs and recomputes it in the backward pass: only the inputs and outputs are saved. It is
// jax.checkpoint (https://docs.jax.dev/en/latest/gradient-checkpointing.html) and torch.utils.checkpoint.
//
// What fn uses besides its inputs, such as parameters, stays in memory and gets its gradients. So does what depends
// only on these: pass the key of random bits as an input, or the compiler decides whether the bits are saved.
//
// A Call inside fn saves its inputs and outputs too, and what fn computes from these outputs alone is then not
// recomputed: put calls one after another rather than inside each other.
//
// It builds a graph, and panics without inputs, for nil inputs or outputs, and where fn does.
func Call(fn func(in []*graph.Node) []*graph.Node, in ...*graph.Node) []*graph.Node {
	if len(in) == 0 {
		panic(errors.New("recompute: Call without inputs: give what the function is to be recomputed from"))
	}
	from := make([]*graph.Node, len(in))
	for i, x := range in {
		if x == nil {
			panic(fmt.Errorf("recompute: input %d of Call is nil: give a node", i))
		}
		from[i] = checkpoint(x)
	}
	results := fn(from)
	out := make([]*graph.Node, len(results))
	for i, y := range results {
		if y == nil {
			panic(fmt.Errorf("recompute: output %d of Call's function is nil: return nodes", i))
		}
		out[i] = y.StopCheckpoint()
	}
	return out
}

// checkpoint is x.Checkpoint, which would drop a custom gradient of x itself, or that it is a StopGradient
// (docs/upstream.md, "custom gradients before Checkpoint"). Two reshapes, which cost nothing, prevent that.
func checkpoint(x *graph.Node) *graph.Node {
	dims := x.Shape().Dimensions
	return graph.Reshape(graph.Reshape(x, append(slices.Clone(dims), 1)...), dims...).Checkpoint()
}
