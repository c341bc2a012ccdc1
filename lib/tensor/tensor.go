// Package tensor implements tensor parallelism: the weights of each layer are sharded over the devices of a mesh axis
// (Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, §3).
//
// For two matmuls with an elementwise function in between, Z = f(X·A)·B, each of n devices has N/n columns of A and the
// same N/n rows of B. It computes f(X·A_r)·B_r, and the sum of these over the devices is Z. [Group.Columns] multiplies
// by A_r; [Group.Rows] multiplies by B_r and sums. Attention is such a pair, with heads in place of columns. So a
// Transformer block has two all-reduces of B·T·C elements in the forward pass (g) and two of the gradients of X in the
// backward pass (f).
//
// Between the pairs, every device computes normalizations and residuals of all tokens. Sequence parallelism
// (Korthikanti et al. 2022, arXiv:2205.05198, §4.2.2) splits these by tokens: an all-reduce becomes a reduce-scatter,
// which leaves each device its tokens, and an all-gather before the next pair. It moves the same bytes, and these
// activations need 1/n of the memory. Use [Group.Replicated] for the parameters of these layers.
//
// The vocabulary is sharded as well: see [Group.Embed] and [Group.CrossEntropy], which never has all logits on one
// device. [Rules] say how each parameter is sharded. All functions build the one graph that every device of a mesh runs
// (xla.Compile), and panic on invalid arguments. Each device computes the full loss, which counts once: see
// collective.F and collective.G.
package tensor

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// Group is the tensor-parallel devices along a mesh axis. The zero Group is a single device, for which the methods add
// nothing to the graph; so is a Group along an axis of size 1.
type Group struct {
	Axis     string // of the mesh
	Sequence bool   // sequence parallelism: outside the sharded layers each device has only its part of the tokens
	// Overlap, with Sequence, splits each all-gather with its matmul, and each matmul with its reduce-scatter, into a
	// ring of n chunks, so that one chunk can be sent while another is multiplied (Wang et al. 2023, "Overlap
	// Communication with Dependent Computation via Decomposition in Large Deep Learning Models"). Whether they run at
	// the same time depends on the compiler and the devices.
	Overlap bool
}

// Alone reports whether the group has no axis, so is a single device.
func (t Group) Alone() bool { return t.Axis == "" }

// Size returns the number of devices of the group. It panics if the graph's mesh does not have the axis.
func (t Group) Size(g *graph.Graph) int {
	if t.Alone() {
		return 1
	}
	return collective.AxisSize(g, t.Axis)
}

// Rank returns the device's rank in the group, from 0, as an int32 scalar. On several devices it needs an all-to-all of
// Size int32 numbers, once in each graph (see collective.Rank).
func (t Group) Rank(g *graph.Graph) *graph.Node {
	if t.Size(g) == 1 {
		return graph.Const(g, int32(0))
	}
	return collective.Rank(g, t.Axis)
}

// splitsTokens reports whether each of several devices has its part of the tokens.
func (t Group) splitsTokens(g *graph.Graph) bool { return t.Sequence && t.Size(g) > 1 }

// Tokens returns the device's tokens along an axis of x with Sequence, and x without. It has no communication. The
// gradient of x is zero for the tokens of other devices. It panics if the devices do not divide the axis.
func (t Group) Tokens(x *graph.Node, axis int) *graph.Node {
	if !t.splitsTokens(x.Graph()) {
		return x
	}
	return collective.Part(x, axis, t.Axis)
}

// check panics with an error unless a condition holds.
func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Errorf("tensor: "+format, args...))
	}
}
