package recompute

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
)

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
		sizes[i] = n / k
		if i < n%k {
			sizes[i]++
		}
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
