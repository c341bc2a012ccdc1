// Package compress saves activations in few bytes between the forward pass and the backward pass: it encodes them after
// their use in the former and decodes them before their use in the latter. The forward pass is exact, and so are the
// gradients if the codec is lossless (Jain et al. 2018, "Gist: Efficient Data Encoding for Deep Neural Network
// Training", ISCA).
//
// [Keep] does it for any function; [Dot], [ReLU] and [Through] are Keep for common ones. The [Codec] defines what is
// saved: Gist's one bit per element for a ReLU ([Sign], its "Binarize"), its sparse storage ([CSR]), its narrow formats
// ([Float], its "delayed precision reduction"), and integers with a scale per group ([Int8]).
package compress

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
)

// Keep returns f(x, live), and its gradient at the decoded values of x: of the tensors x, only the codes are saved for
// the backward pass, and f is recomputed there. live are other inputs that are in memory anyway, such as weights; they
// are not encoded.
//
// f is called for each graph.Gradient. Only its arguments get gradients, and x must be floats, so f must not use other
// nodes that need gradients. See [autodiff.Custom] for inputs without gradients. There are no second derivatives.
// Without a backward pass, call f directly: Keep encodes in any case.
//
// The gradients of x wait for those of live, so that one layer is finished before the next begins. Under
// Node.Checkpoint the results are the same, but the codec saves nothing: the codes are recomputed with the rest.
//
// It panics where f or the codec does.
func Keep(codec Codec, x, live []*graph.Node, f func(x, live []*graph.Node) []*graph.Node) []*graph.Node {
	split := func(all []*graph.Node) (ofX, ofLive []*graph.Node) { return all[:len(x):len(x)], all[len(x):] }
	var outputs int
	forward := func(in []*graph.Node) []*graph.Node {
		x, live := split(in)
		y := slices.Clone(f(x, live))
		outputs = len(y)
		var codes []*graph.Node
		for _, x := range x {
			codes = append(codes, codec.Encode(x)...)
		}
		if codec != Dense() {
			// no fusion with the decoding, as long as XLA has barriers
			codes = graph.OptimizationBarriers(codes...)
			y = after(y, codes) // or XLA would delay the encoding, and hold x until then
		}
		return append(y, codes...)
	}
	backward := func(in, out, v []*graph.Node) []*graph.Node {
		x, live := split(in)
		v = v[:outputs]
		codes := after(out[outputs:], v) // or XLA would decode at once, and hold the result
		decoded := make([]*graph.Node, len(x))
		for i := range x {
			each := len(codes) / len(x)
			decoded[i] = codec.Decode(codes[i*each:(i+1)*each], x[i].Shape())
		}
		ofX, ofLive := split(pull(f, decoded, live, v))
		return append(after(ofX, ofLive), ofLive...)
	}
	return autodiff.Custom(slices.Concat(x, live), forward, backward)[:outputs]
}

// Through is [Keep] for a function of x alone, such as an activation function.
func Through(x *graph.Node, codec Codec, f func(x *graph.Node) *graph.Node) *graph.Node {
	return Keep(codec, []*graph.Node{x}, nil, func(x, _ []*graph.Node) []*graph.Node {
		return []*graph.Node{f(x[0])}
	})[0]
}

// Dot returns x·w (…,out) for x (…,in) and w (in,out), as [precision.Matmul.Dot] does; it saves x for w's gradient in
// the codec. It panics if the shapes do not fit or m is invalid.
func Dot(x, w *graph.Node, codec Codec, m precision.Matmul) *graph.Node {
	return Keep(codec, []*graph.Node{x}, []*graph.Node{w}, func(x, w []*graph.Node) []*graph.Node {
		return []*graph.Node{m.Dot(x[0], []int{-1}, nil, w[0], []int{0}, nil)}
	})[0]
}

// ReLU returns max(x, 0), and saves one bit per element for the gradient, which is 1 where x is at least 0, as GoMLX
// has it, and 0 elsewhere. GoMLX's gradient differs only where x is NaN, where it is NaN. It panics if x is not a
// float.
func ReLU(x *graph.Node) *graph.Node {
	return Through(x, Sign(), func(x *graph.Node) *graph.Node { return graph.Max(x, graph.ZerosLike(x)) })
}

// pull returns the gradients of f's arguments for the gradients v of its results; nil for arguments without a gradient.
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
	// The sum itself is never computed: it only makes v the gradient of y.
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

// leaves returns the nodes without what they depend on, for graph.Gradient and Checkpoint.
func leaves(nodes []*graph.Node) []*graph.Node {
	cut := make([]*graph.Node, len(nodes))
	for i, n := range nodes {
		cut[i] = graph.StopGradient(n).StopCheckpoint()
	}
	return cut
}

// after returns the nodes, to be computed after all of the others. Either may be nil. It works on the bits, since XLA's
// arithmetic on CPUs flushes subnormal numbers to 0.
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
