// Package recompute trades time for memory: activations that the forward pass does not save and the backward pass
// recomputes, known as activation recomputation or gradient checkpointing (Chen et al. 2016, "Training Deep Nets with
// Sublinear Memory Cost").
//
// [Call] recomputes any function of a graph, [Chain] a deep network in segments. For Transformers a [Policy] names what
// is saved and what is recomputed, operation by operation, and [Choose] finds the choice that recomputes least within a
// memory budget. Losses and gradients do not change.
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

// Chain applies layers to x, one after another, in segments with the given numbers of layers. Only the outputs of
// segments are saved; the backward pass recomputes the rest, segment by segment from the last (Chen et al. 2016, §4.1).
// The last segment's values are saved, since the backward pass begins with them. So with one segment, or none given,
// nothing is recomputed.
//
// If the backward pass needs a tensors of one size per layer, k equal segments of n layers need memory for k + a·n/k
// tensors, which is least for k = √(a·n): √n if a layer needs only its output. Shrinking segments need less: see
// [Shrinking].
//
// It builds a graph, and panics if the segments' layers do not add up to all.
func Chain(x *graph.Node, layers []func(*graph.Node) *graph.Node, segments ...int) *graph.Node {
	checkSegments(len(layers), segments)
	for len(segments) > 1 {
		n := segments[0]
		x = Call(func(in []*graph.Node) []*graph.Node { return []*graph.Node{through(in[0], layers[:n])} }, x)[0]
		layers, segments = layers[n:], segments[1:]
	}
	return through(x, layers)
}

func through(x *graph.Node, layers []func(*graph.Node) *graph.Node) *graph.Node {
	for _, layer := range layers {
		x = layer(x)
	}
	return x
}

func checkSegments(layers int, segments []int) {
	rest := layers
	for i, n := range segments {
		if n < 1 || n > rest {
			panic(fmt.Errorf("recompute: segment %d has %d layers, with %d layers left: give each at least 1 and %d "+
				"in all", i, n, rest, layers))
		}
		rest -= n
	}
	if len(segments) > 0 && rest > 0 {
		panic(fmt.Errorf("recompute: the segments have %d of %d layers: give all", layers-rest, layers))
	}
}

// Uniform returns the sizes of k segments of n layers, which differ by at most 1. A k that is not in 1 to n counts as
// the nearest that is. Without layers there are no segments.
func Uniform(n, k int) []int {
	if n < 1 {
		return nil
	}
	k = min(max(k, 1), n)
	sizes := make([]int, k)
	for i := range sizes {
		sizes[i] = (n + k - 1 - i) / k
	}
	return sizes
}

// Shrinking returns the sizes of segments of n layers, of which each has one layer less than the one before, since one
// more output is in memory by then. If each layer needs one tensor, the backward pass needs memory for √(2n) of them,
// the least possible if nothing is recomputed twice; equal segments need 2√n.
func Shrinking(n int) []int {
	first := 0
	for reach := 0; reach < n; reach += first {
		first++
	}
	var sizes []int
	for ; n > 0; first-- {
		size := min(first, n)
		sizes, n = append(sizes, size), n-size
	}
	return sizes
}
