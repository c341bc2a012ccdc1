package sequence

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// Attention is flash.Attention over sequences that are split over the group; tokens is their full length. q is
// (B,Local,H,D), k (B,Local,K,D), v (B,Local,K,E) and the result (B,Local,H,E), each with the device's tokens. The
// options are those of one device, without positions and segments. Padding attends only to padding, and has no effect
// on other outputs or gradients.
//
// A ring saves the device's own q, k and v, the output, and two numbers for each query and head. See [Group.Traffic]
// for its communication.
//
// It panics on wrong shapes, on arguments on which flash.Attention or [Group.Local] panic, and if the Ulysses ranks do
// not divide the heads.
func (s Group) Attention(q, k, v *graph.Node, tokens int, o flash.Options) *graph.Node {
	l := s.layout(q.Graph(), tokens)
	if err := l.check(q, k, v, o); err != nil {
		panic(err)
	}
	if l.ulysses > 1 { // Jacobs et al. 2023, §3.2: (B,Local,H,D) to (B,u·Local,H/u,D)
		exchange := func(x *graph.Node) *graph.Node { return collective.AllToAll(x, 2, 1, l.Ulysses) }
		q, k, v = exchange(q), exchange(k), exchange(v)
	}
	var out *graph.Node
	switch {
	case l.ring == 1:
		out = flash.Attention(q, k, v, l.alone(q, o))
	case l.Gather:
		out = l.gatherAttention(q, k, v, o)
	default:
		out = l.ringAttention(q, k, v, o)
	}
	if l.ulysses > 1 {
		out = collective.AllToAll(out, 1, 2, l.Ulysses)
	}
	return out
}

func (l layout) check(q, k, v *graph.Node, o flash.Options) error {
	for _, x := range []*graph.Node{q, k, v} {
		if x.Rank() != 4 || x.Shape().Dim(1) != l.local() {
			return fmt.Errorf("sequence: queries are %s, keys %s, values %s: want (B,%d,H,D), (B,%d,K,D) and "+
				"(B,%d,K,E) for a device's part of %d tokens",
				q.Shape(), k.Shape(), v.Shape(), l.local(), l.local(), l.local(), l.tokens)
		}
	}
	if o.QueryPositions != nil || o.KeyPositions != nil || o.QuerySegments != nil || o.KeySegments != nil {
		return fmt.Errorf("sequence: the mask has positions or segments: leave them nil, since the group sets them")
	}
	if err := Exchanges(q.Shape().Dim(2), k.Shape().Dim(2), l.ulysses); err != nil {
		return err
	}
	if q.DType() == dtypes.Float64 && l.Reduce != dtypes.InvalidDType {
		return fmt.Errorf("sequence: Reduce is %s and attention is in Float64: leave Reduce unset", l.Reduce)
	}
	return nil
}

// Exchanges returns an error unless the number of Ulysses ranks divides both the query heads and the key/value heads of
// a device.
func Exchanges(heads, keyHeads, ranks int) error {
	if ranks < 1 || heads%ranks != 0 || keyHeads%ranks != 0 {
		return fmt.Errorf("sequence: a device has %d query heads and %d key/value heads, which %d devices cannot "+
			"exchange evenly for tokens (Ulysses): choose a number of devices that divides both, or the ring",
			heads, keyHeads, ranks)
	}
	return nil
}

// sum is the type in which partial results and gradients accumulate.
func (l layout) sum(of dtypes.DType) dtypes.DType {
	switch {
	case l.Reduce != dtypes.InvalidDType:
		return l.Reduce
	case of == dtypes.Float64:
		return dtypes.Float64
	}
	return dtypes.Float32
}

// alone returns the mask if a device has all tokens, in order.
func (l layout) alone(q *graph.Node, o flash.Options) flash.Options {
	if l.padding() == 0 {
		return o
	}
	positions := iota32(q.Graph(), l.onRing())
	o.QuerySegments = l.segments(positions, q.Shape().Dim(0))
	o.KeySegments = o.QuerySegments
	return o
}

// masked returns the mask of queries and keys at these positions.
func (l layout) masked(o flash.Options, queries, keys *graph.Node, batch int) flash.Options {
	if o.Causal || o.Window > 0 {
		o.QueryPositions, o.KeyPositions = queries, keys
	}
	if l.padding() > 0 {
		o.QuerySegments, o.KeySegments = l.segments(queries, batch), l.segments(keys, batch)
	}
	return o
}

// segments returns the segments (B,N) of positions (N): 1 for padding, 0 for tokens.
func (l layout) segments(positions *graph.Node, batch int) *graph.Node {
	padding := graph.GreaterOrEqual(positions, graph.Const(positions.Graph(), int32(l.tokens)))
	n := positions.Shape().Dim(0)
	return graph.BroadcastToDims(graph.Reshape(graph.ConvertDType(padding, dtypes.Int32), 1, n), batch, n)
}

// gatherAttention gathers all keys and values along the ring and attends to them at once (Llama Team 2024,
// arXiv:2407.21783, §3.3.2).
func (l layout) gatherAttention(q, k, v *graph.Node, o flash.Options) *graph.Node {
	g := q.Graph()
	index, n := iota32(g, l.onRing()*l.ring), graph.Const(g, int32(l.onRing()))
	rank := graph.Const(g, int32(0))
	if o.Causal || o.Window > 0 || l.padding() > 0 {
		rank = l.ringRank(g)
	}
	queries := l.positions(iota32(g, l.onRing()), rank)
	keys := l.positions(graph.Mod(index, n), graph.Div(index, n))
	return flash.Attention(q, l.gather(k), l.gather(v), l.masked(o, queries, keys, q.Shape().Dim(0)))
}

// gather gathers the tokens (axis 1) of all ranks. Its gradient is reduced in the type of sum, which for half types is
// not x's type.
func (l layout) gather(x *graph.Node) *graph.Node {
	return autodiff.Custom([]*graph.Node{x},
		func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{collective.AllGather(in[0], 1, l.Ring)}
		},
		func(in, _, gradient []*graph.Node) []*graph.Node {
			sum := collective.ReduceScatter(graph.ConvertDType(gradient[0], l.sum(x.DType())), collective.Sum, 1,
				l.Ring)
			return []*graph.Node{graph.ConvertDType(sum, x.DType())}
		})[0]
}

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

// hop is step n of a ring, in which rank r has the keys of rank r−n.
type hop struct {
	queries, keys *graph.Node // positions, (N) int32
	sees          *graph.Node // 1, or 0 if no query sees a key: an int32 scalar that is not a constant to the compiler
}

func (l layout) inHop(n int, o flash.Options, rank *graph.Node) hop {
	g := rank.Graph()
	index, number := iota32(g, l.onRing()), func(i int) *graph.Node { return graph.Const(g, int32(i)) }
	from := graph.Mod(graph.AddScalar(rank, l.ring-n), number(l.ring))
	h := hop{queries: l.positions(index, rank), keys: l.positions(index, from)}
	sees := graph.GreaterOrEqual(rank, number(0)) // always true, but not a constant
	ahead := func(a, b *graph.Node) *graph.Node { // the least distance from any of b to any of a
		return graph.Sub(graph.ReduceAllMin(a), graph.ReduceAllMax(b))
	}
	if o.Causal {
		sees = graph.LogicalAnd(sees, graph.LessOrEqual(ahead(h.keys, h.queries), number(0)))
	}
	if o.Window > 0 {
		sees = graph.LogicalAnd(sees, graph.LessThan(ahead(h.queries, h.keys), number(o.Window)))
		sees = graph.LogicalAnd(sees, graph.LessThan(ahead(h.keys, h.queries), number(o.Window)))
	}
	h.sees = graph.ConvertDType(sees, dtypes.Int32)
	return h
}

// add returns more(sums, in), or sums unchanged if the hop's queries see none of its keys.
//
// It is a loop of one iteration or none, for two reasons. A hop without visible keys costs nothing. And a loop
// accumulates in its own buffers: otherwise the compiler would delay all additions to the end, to fuse them, and keep
// every hop's results in memory until then. All nodes pass through the loop, since GoMLX does not see what its body
// uses from outside.
func (h hop) add(sums, in []*graph.Node, more func(sums, in []*graph.Node) []*graph.Node) []*graph.Node {
	n := len(sums)
	state := append(append([]*graph.Node{h.sees}, sums...), in...)
	return xla.While(state, func(s []*graph.Node) *graph.Node {
		return graph.GreaterThan(s[0], graph.ZerosLike(s[0]))
	}, func(s []*graph.Node) []*graph.Node {
		sums := more(s[1:n+1], s[n+1:])
		return append(append([]*graph.Node{graph.ZerosLike(s[0])}, sums...), s[n+1:]...)
	})[1 : n+1]
}
