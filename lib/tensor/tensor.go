// Package tensor has tensor parallelism: the devices along a mesh axis compute each layer together, with a part of it
// each (Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, §3).
//
// A pair of matrices with something elementwise between them, Z = f(X·A)·B, is shared so: each of n devices has N/n
// columns of A and the same N/n rows of B. It computes f(X·A_r)·B_r by itself, of the shape of Z, and the sum of these
// over the devices is Z: nothing but that sum is communicated. [Group.Columns] is the product by A_r and [Group.Rows]
// that by B_r with the sum. Attention is such a pair with heads in the place of columns. So a Transformer block has two
// sums, all-reduces of B·T·C numbers each, in the forward pass (g: the transpose is the identity), and two in the
// backward pass, of the gradients of X (f: the identity in the forward pass).
//
// What lies between the pairs, normalizations and residuals, every device computes whole: the same work and the same
// activations n times. Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, §4.2.2) shares that along the
// tokens: an all-reduce becomes a reduce-scatter that leaves each device its part of the tokens, and an all-gather
// before the next pair. It moves the same bytes, and these activations take the n-th part of the memory. Group.Replicated
// is for the parameters that are used there.
//
// The vocabulary is shared, too: [Group.Embed] and [Group.CrossEntropy], which never has all logits on one device.
// [Rules] say which parameter is cut how. All functions build one graph that every device of a mesh runs (xla.Compile),
// and panic if their arguments do not fit. Each device's loss is the whole loss, which counts once: see collective.F
// and collective.G.
package tensor

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// Group is the devices along a mesh axis that share layers. The zero Group is one device by itself, as is one along an
// axis of size 1: its methods add nothing to what one device computes.
type Group struct {
	Axis     string // of the mesh
	Sequence bool   // between the shared layers each device has its part of the tokens, else all of them
	// Overlap makes, with Sequence, a ring of n chunks of an all-gather and the products behind it, and of a product
	// and the reduce-scatter behind it, so that a chunk can travel while another is multiplied (Wang et al. 2023,
	// "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models"). Whether they
	// do run at the same time is up to the compiler and the devices.
	Overlap bool
}

// Alone reports whether the group is one device without a mesh: it has no axis.
func (t Group) Alone() bool { return t.Axis == "" }

// Size is the number of devices of the group. It panics if the graph's mesh does not have the axis.
func (t Group) Size(g *graph.Graph) int {
	if t.Alone() {
		return 1
	}
	return collective.AxisSize(g, t.Axis)
}

// Rank is the device's place in the group, from 0, an int32 scalar. Along an axis of several devices it costs an
// all-to-all of Size numbers, once a graph (see collective.Rank).
func (t Group) Rank(g *graph.Graph) *graph.Node {
	if t.Size(g) == 1 {
		return graph.Const(g, int32(0))
	}
	return collective.Rank(g, t.Axis)
}

// sharesTokens reports whether each of several devices has its part of the tokens.
func (t Group) sharesTokens(g *graph.Graph) bool { return t.Sequence && t.Size(g) > 1 }

// Tokens is this device's part of the tokens along an axis of x, with Sequence, and else x. It moves nothing. The
// transpose puts the gradient into place, with zeros for the tokens of other devices. It panics if the devices do not
// divide the axis.
func (t Group) Tokens(x *graph.Node, axis int) *graph.Node {
	if !t.sharesTokens(x.Graph()) {
		return x
	}
	return collective.Part(x, axis, t.Axis)
}

// check panics with an error of this package unless a condition holds.
func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Errorf("tensor: "+format, args...))
	}
}
