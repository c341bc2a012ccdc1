// Package compress keeps activations in few bytes between their use in the forward pass and their use in the backward
// pass: each is encoded after the one and decoded before the other. The forward pass is exact, and so are the gradients
// if the codec is lossless. (Jain et al. 2018, "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA.)
//
// [Keep] does it for any function; [Dot], [ReLU] and [Through] are Keep for the usual ones. What is kept, and how many
// bytes it has, is the [Codec]'s business: Gist's one bit for a ReLU ([Sign], its "Binarize"), its sparse storage
// ([CSR]), its narrow formats ([Float], its "delayed precision reduction"), and integers with a scale for each group
// ([Int8]).
package compress

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
)

// Keep returns f(x, live), with the gradient that f has at what the codec makes of x: of the tensors x only the codes
// are kept between the passes, and nothing of what f computes on the way, which is computed again. live are other
// inputs that are in memory anyway, such as weights; they are kept as they are.
//
// f is called anew for each graph.Gradient. Only its arguments get gradients, of which x must be floats, so f must not
// reach for anything else that needs one. [autodiff.Custom] says what holds for inputs that are not to have a gradient.
// The gradients have no gradients of their own. Where there is no backward pass, call f itself: Keep makes the codes
// anyway.
//
// The gradients of x wait for those of live, so that one layer is done with before the next begins. Under
// Node.Checkpoint results are the same, but nothing is saved by the codec: the codes are made anew with all else.
//
// It panics where f or the codec does.
func Keep(codec Codec, x, live []*graph.Node, f func(x, live []*graph.Node) []*graph.Node) []*graph.Node {
	split := func(all []*graph.Node) (ofX, ofLive []*graph.Node) { return all[:len(x):len(x)], all[len(x):] }
	var outputs int
	forward := func(in []*graph.Node) []*graph.Node {
		x, live := split(in)
		y := slices.Clone(f(x, live))
		outputs = len(y)
		var kept []*graph.Node
		for _, x := range x {
			kept = append(kept, codec.Encode(x)...)
		}
		if codec != Dense() {
			// no fusion with the decoding, where XLA has barriers for so long
			kept = graph.OptimizationBarriers(kept...)
			y = after(y, kept) // XLA would put off the encoding, and keep x until then
		}
		return append(y, kept...)
	}
	backward := func(in, out, v []*graph.Node) []*graph.Node {
		x, live := split(in)
		v = v[:outputs]
		kept := after(out[outputs:], v) // XLA would decode at once, and keep the result
		decoded := make([]*graph.Node, len(x))
		for i := range x {
			each := len(kept) / len(x)
			decoded[i] = codec.Decode(kept[i*each:(i+1)*each], x[i].Shape())
		}
		ofX, ofLive := split(pull(f, decoded, live, v))
		return append(after(ofX, ofLive), ofLive...)
	}
	return autodiff.Custom(slices.Concat(x, live), forward, backward)[:outputs]
}

// Through returns f(x) as [Keep] does: for activation functions whose input the codec is to keep.
func Through(x *graph.Node, codec Codec, f func(x *graph.Node) *graph.Node) *graph.Node {
	return Keep(codec, []*graph.Node{x}, nil, func(x, _ []*graph.Node) []*graph.Node { return []*graph.Node{f(x[0])} })[0]
}

// Dot returns x·w (…,out) for x (…,in), which the codec keeps for w's gradient, and w (in,out), as
// [precision.Matmul.Dot] does. It panics if the shapes do not fit or m is not valid.
func Dot(x, w *graph.Node, codec Codec, m precision.Matmul) *graph.Node {
	return Keep(codec, []*graph.Node{x}, []*graph.Node{w}, func(x, w []*graph.Node) []*graph.Node {
		return []*graph.Node{m.Dot(x[0], []int{-1}, nil, w[0], []int{0}, nil)}
	})[0]
}

// ReLU returns max(x, 0), and keeps a bit of each element for the gradient, which is 1 where x is at least 0, as GoMLX
// has it, and 0 elsewhere. Only where x is NaN do GoMLX's own gradients differ: they are NaN. It panics if x is not a
// float.
func ReLU(x *graph.Node) *graph.Node {
	return Through(x, Sign(), func(x *graph.Node) *graph.Node { return graph.Max(x, graph.ZerosLike(x)) })
}

// pull returns the gradients of f's arguments, at these, for the gradients v of its results; nil for what has none.
func pull(f func(x, live []*graph.Node) []*graph.Node, x, live, v []*graph.Node) []*graph.Node {
	x, live, v = leaves(x), leaves(live), leaves(v)
	arguments := slices.Concat(x, live)
	gradients := make([]*graph.Node, len(arguments))
	var floats, sums []*graph.Node
	for _, n := range arguments {
		if n.DType().IsFloat() {
			floats = append(floats, n)
		}
	}
	for i, y := range f(x, live) {
		if y.DType().IsFloat() {
			sums = append(sums, graph.ConvertDType(graph.ReduceAllSum(graph.Mul(y, v[i])), dtypes.Float32))
		}
	}
	if len(sums) == 0 || len(floats) == 0 {
		return gradients
	}
	// Nothing computes the sum: its gradient for y is v.
	sum := sums[0]
	for _, s := range sums[1:] {
		sum = graph.Add(sum, s)
	}
	of := graph.Gradient(sum, floats...)
	for i, n := range arguments {
		if n.DType().IsFloat() {
			gradients[i], of = of[0], of[1:]
		}
	}
	return gradients
}

// leaves returns the nodes as ones that depend on nothing for graph.Gradient, nor are made again under Checkpoint.
func leaves(nodes []*graph.Node) []*graph.Node {
	cut := make([]*graph.Node, len(nodes))
	for i, n := range nodes {
		cut[i] = graph.StopGradient(n).StopCheckpoint()
	}
	return cut
}

// after returns the nodes, but not before all of the others are there. Either may be nil. It works on the bits, for
// XLA's arithmetic on CPUs takes subnormal numbers for 0.
func after(nodes, others []*graph.Node) []*graph.Node {
	others = slices.DeleteFunc(slices.Clone(others), func(n *graph.Node) bool { return n == nil })
	if len(others) == 0 {
		return nodes
	}
	tied := make([]*graph.Node, len(nodes))
	for i, n := range nodes {
		if n != nil {
			tied[i] = precision.FromBits(graph.SchedulingBarrier(precision.ToBits(n), others...), n.DType())
		}
	}
	return tied
}
