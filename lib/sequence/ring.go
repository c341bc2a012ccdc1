package sequence

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/precision"
)

// ringAttention is ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889, Algorithm 1). The forward pass sends
// keys and values for P−1 hops. The backward pass sends them again for P−1 hops, and their gradients for P hops: along
// with them, and then back to their owner.
func (l layout) ringAttention(q, k, v *graph.Node, o flash.Options) *graph.Node {
	return autodiff.Custom([]*graph.Node{q, k, v, l.ringRank(q.Graph())},
		func(in []*graph.Node) []*graph.Node {
			merged := l.ringForward(in[0], in[1], in[2], in[3], o)
			return []*graph.Node{merged.Output(q.DType()), merged.M, merged.D}
		},
		func(in, out, gradient []*graph.Node) []*graph.Node {
			merged := flash.Partial{M: out[1], D: out[2]}
			merged.O = graph.Mul(graph.ConvertDType(out[0], merged.D.DType()), graph.InsertAxes(merged.D, -1))
			dq, dk, dv := l.ringBackward(in[0], in[1], in[2], in[3], merged, gradient[0], o)
			return []*graph.Node{dq, dk, dv, nil}
		})[0]
}

func (l layout) ringForward(q, k, v, rank *graph.Node, o flash.Options) flash.Partial {
	keys := l.toSend(k, v)
	next := l.onward(keys)
	here := l.inHop(0, o, rank)
	first := flash.Attend(q, k, v, l.masked(o, here.queries, here.keys, q.Shape().Dim(0)))
	sums := []*graph.Node{first.M, first.D, first.O}
	for n := 1; n < l.ring; n++ {
		if keys = next; n < l.ring-1 {
			keys = l.after(keys, sums[2])
			next = l.onward(keys)
		}
		hop := l.inHop(n, o, rank)
		sums = hop.add(sums, []*graph.Node{hop.queries, hop.keys, q, keys.flat},
			func(sums, in []*graph.Node) []*graph.Node {
				k, v := keys.of(in[3]).split()
				part := flash.Attend(in[2], k, v, l.masked(o, in[0], in[1], q.Shape().Dim(0)))
				merged := flash.Partial{M: sums[0], D: sums[1], O: sums[2]}.Merge(part)
				return []*graph.Node{merged.M, l.rounded(merged.D), l.rounded(merged.O)}
			})
	}
	return flash.Partial{M: sums[0], D: sums[1], O: sums[2]}
}

// ringBackward returns the gradients of q, k and v for the output gradient dOut. Each hop computes in float32 (float64
// for float64), also for half types, so that nothing is rounded before it is accumulated.
func (l layout) ringBackward(q, k, v, rank *graph.Node, merged flash.Partial, dOut *graph.Node,
	o flash.Options) (dq, dk, dv *graph.Node) {
	of, sum := q.DType(), l.sum(q.DType())
	wide := func(x *graph.Node) *graph.Node { return graph.ConvertDType(x, merged.D.DType()) }
	narrow := func(x *graph.Node) *graph.Node { return graph.ConvertDType(x, sum) }
	keys := l.toSend(k, v)
	// The gradients of q and, joined, of k and v.
	gradients := func(in []*graph.Node) (dq, dkv *graph.Node) {
		k, v := keys.of(in[3]).split()
		merged := flash.Partial{M: in[4], D: in[5], O: in[6]}
		dq, dk, dv := flash.Gradients(wide(in[2]), wide(k), wide(v), merged, wide(in[7]),
			l.masked(o, in[0], in[1], q.Shape().Dim(0)))
		return dq, join(dk, dv).flat
	}
	// Without this the compiler merges the forward and backward shifts of the same keys, and saves all ranks' keys.
	keys = l.after(keys, dOut)
	operands := func(n int) (hop, []*graph.Node) {
		hop := l.inHop(n, o, rank)
		return hop, []*graph.Node{hop.queries, hop.keys, q, keys.flat, merged.M, merged.D, merged.O, dOut}
	}
	next := l.onward(keys)
	_, in := operands(0)
	dq, dkv := gradients(in)
	sums := []*graph.Node{narrow(dq), narrow(dkv)}
	for n := 1; n < l.ring; n++ {
		if keys = next; n < l.ring-1 {
			keys = l.after(keys, sums[0])
			next = l.onward(keys)
		}
		sums[1] = l.shift(sums[1])
		hop, in := operands(n)
		sums = hop.add(sums, in, func(sums, in []*graph.Node) []*graph.Node {
			dq, dkv := gradients(in)
			return []*graph.Node{narrow(graph.Add(wide(sums[0]), dq)), narrow(graph.Add(wide(sums[1]), dkv))}
		})
	}
	dk, dv = pair{l.shift(sums[1]), sum, keys.shapes}.split()
	return graph.ConvertDType(sums[0], of), graph.ConvertDType(dk, of), graph.ConvertDType(dv, of)
}

// onward sends keys and values to the next rank.
func (l layout) onward(keys pair) pair { return keys.of(l.shift(keys.flat)) }

// shift sends x to the next rank.
func (l layout) shift(x *graph.Node) *graph.Node { return collective.RingShift(x, 1, l.Ring) }

// rounded rounds a sum to the type of sum.
func (l layout) rounded(x *graph.Node) *graph.Node {
	return graph.ConvertDType(graph.ConvertDType(x, l.sum(x.DType())), x.DType())
}

// pair is two tensors of one type that are sent in one message.
type pair struct {
	flat   *graph.Node // all elements of the first, then of the second, or their bits
	dtype  dtypes.DType
	shapes [2][]int
}

func join(a, b *graph.Node) pair {
	flat := graph.Concatenate([]*graph.Node{graph.Reshape(a, -1), graph.Reshape(b, -1)}, 0)
	return pair{flat, a.DType(), [2][]int{a.Shape().Dimensions, b.Shape().Dimensions}}
}

// toSend returns keys and values as they are sent: as integers within one program, since XLA on CPUs would store half
// types as float32 between hops.
func (l layout) toSend(k, v *graph.Node) pair {
	p := join(k, v)
	if l.between(k.Graph()) {
		return p
	}
	return p.of(precision.ToBits(p.flat))
}

// between reports whether the ring's ranks have programs of their own.
func (l layout) between(g *graph.Graph) bool { return collective.IsBetween(g, l.Ring) }

// of returns a pair of the same type and shapes.
func (p pair) of(flat *graph.Node) pair { return pair{flat, p.dtype, p.shapes} }

// after delays the pair until x is computed. Otherwise the compiler may send keys all the way around first, so that a
// rank stores all ranks' keys at once. Separate programs have no such compiler.
func (l layout) after(p pair, x *graph.Node) pair {
	if l.between(x.Graph()) {
		return p
	}
	return p.of(graph.SchedulingBarrier(p.flat, x))
}

func (p pair) split() (a, b *graph.Node) {
	size := 1
	for _, n := range p.shapes[0] {
		size *= n
	}
	flat := precision.FromBits(p.flat, p.dtype)
	a = graph.Reshape(graph.Slice(flat, graph.AxisRange(0, size)), p.shapes[0]...)
	return a, graph.Reshape(graph.Slice(flat, graph.AxisRange(size)), p.shapes[1]...)
}
