package recompute

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
)

// Chain runs x through layers, one after another, in segments of so many layers each. Of a segment only the output is
// kept; the backward pass makes the rest again, segment by segment from the last (Chen et al. 2016, §4.1). The last
// segment's values are kept, since the backward pass begins with them. So of one segment, or with none given, nothing
// is recomputed.
//
// n layers that each need a tensors of one size in the backward pass hold in k equal segments about k + a·n/k of them,
// which is least for k = √(a·n): √n where a layer needs its output and no more. Segments that get shorter do better:
// see [Shrinking].
//
// It builds a graph, and panics if the segments do not have as many layers together as there are.
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
	left := layers
	for i, n := range segments {
		if n < 1 || n > left {
			panic(fmt.Errorf("recompute: segment %d has %d layers, of %d that are left: give each at least 1 and all of them %d",
				i, n, left, layers))
		}
		left -= n
	}
	if len(segments) > 0 && left > 0 {
		panic(fmt.Errorf("recompute: the segments have %d of %d layers: give all", layers-left, layers))
	}
}

// Uniform returns the sizes of k segments of n layers, which differ by at most 1. Of a k that is not in 1 to n it takes
// the nearest that is; of no layers there are no segments.
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

// Shrinking returns the sizes of segments of n layers of which each has one layer less than the one before it, since
// one output more is kept by then. Where each layer needs one tensor, the backward pass holds √(2n) of them, as little
// as it can if nothing is made again twice; equal segments hold 2√n.
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
