// Package flash computes attention without storing the scores of all pairs of tokens, so that its memory is linear in
// the sequence length: FlashAttention (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691), by online
// softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) over blocks of keys. Package online derives it step by step
// in plain Go.
package flash

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Options are the options of attention. With the zero value every query attends to every key.
type Options struct {
	Mask
	Scale          float64        // of the scores, positive; defaults to 1/√D
	Implementation Implementation // defaults to Auto
	Block          Block          // block sizes of the engine Blocks
}

// Attention returns scaled dot-product attention, softmax(scale·q·kᵀ)·v for each head, over the keys that the mask
// allows (Vaswani et al. 2017, §3.2.1). The output of a query that sees no key is zero.
//
// q is (B,T,H,D), k (B,S,K,D), v (B,S,K,E) and the result (B,T,H,E), all of one type: float32, bfloat16 or float16, or
// float64 with the engine Blocks. K divides H: with K<H it is grouped-query attention (Ainslie et al. 2023,
// arXiv:2305.13245), and query head h uses key head h·K/H. Softmax and accumulation are in float32, or float64 for
// float64.
//
// For the gradient it saves the inputs, the output and the softmax statistics of each query, and recomputes the scores.
// The statistics are the largest score and the sum of exponentials, not their log-sum-exp, whose rounding would be most
// of the error for large scores. Attention works under Checkpoint, on shards of the batch or of the heads, and in
// graphs compiled with xla.CompileAuto.
//
// It panics on invalid shapes, types and options.
func Attention(q, k, v *graph.Node, o Options) *graph.Node {
	c := newCall(q, k, v, o)
	if c.engine() == CuDNN {
		return c.cudnn()
	}
	return autodiff.Custom(c.inputs(), func(in []*graph.Node) []*graph.Node {
		out, m, d := c.with(in).forward(c.q.DType())
		return []*graph.Node{out, m, d}
	}, func(in, out, gradient []*graph.Node) []*graph.Node {
		dq, dk, dv := c.with(in).backward(out[0], out[1], out[2], gradient[0])
		return append([]*graph.Node{dq, dk, dv}, make([]*graph.Node, len(in)-3)...)
	})[0]
}

func negInf(like *graph.Node) *graph.Node {
	return graph.BroadcastToDims(graph.Infinity(like.Graph(), like.DType(), -1), like.Shape().Dimensions...)
}

// call is one call of attention.
type call struct {
	q, k, v *graph.Node
	Options
}

func newCall(q, k, v *graph.Node, o Options) call {
	c := call{q, k, v, o}
	if err := c.check(); err != nil {
		panic(err)
	}
	if c.Scale == 0 {
		c.Scale = 1 / math.Sqrt(float64(c.d()))
	}
	return c
}

func (c call) batch() int    { return c.q.Shape().Dim(0) }
func (c call) queries() int  { return c.q.Shape().Dim(1) }
func (c call) heads() int    { return c.q.Shape().Dim(2) }
func (c call) d() int        { return c.q.Shape().Dim(3) }
func (c call) keys() int     { return c.k.Shape().Dim(1) }
func (c call) keyHeads() int { return c.k.Shape().Dim(2) }
func (c call) e() int        { return c.v.Shape().Dim(3) }

// statistics is the type of softmax statistics and accumulators.
func (c call) statistics() dtypes.DType {
	if c.q.DType() == dtypes.Float64 {
		return dtypes.Float64
	}
	return dtypes.Float32
}

// Mask says which keys a query sees: those that all of its conditions allow. Attention skips blocks of keys that no
// query of a block sees.
type Mask struct {
	// Causal masks later keys: a query sees the keys at its own position and before.
	Causal bool

	// Window, if not 0, masks keys that are Window or more positions away; with Causal, a query sees itself and the
	// Window−1 positions before it (sliding-window attention; Beltagy et al. 2020, arXiv:2004.05150, §3.1).
	Window int

	// Positions of the queries (T) and of the keys (S), int32. By default the keys have 0 to S−1 and the queries S−T to
	// S−1: the queries are the last tokens, as with a KV cache. Positions may have any order, but blocks are skipped by
	// the range of positions in them.
	QueryPositions, KeyPositions *graph.Node

	// Segments of the queries (B,T) and of the keys (B,S), int32, both or none: a query sees only keys of its own
	// segment. Use them for packed sequences and for padding. Positions count through the packed sequence; they need
	// not restart with each segment.
	QuerySegments, KeySegments *graph.Node
}

// Causal returns the options of language models: a token sees itself and those before it.
func Causal() Options { return Options{Mask: Mask{Causal: true}} }

// everything reports whether every query sees every key.
func (m Mask) everything() bool { return !m.Causal && m.Window == 0 && m.QuerySegments == nil }

// extras are the mask's optional nodes; missing ones are nil.
func (m *Mask) extras() []**graph.Node {
	return []**graph.Node{&m.QueryPositions, &m.KeyPositions, &m.QuerySegments, &m.KeySegments}
}

// inputs are all nodes that the result depends on: q, k, v, and the mask's nodes that are not nil.
func (c call) inputs() []*graph.Node {
	in := []*graph.Node{c.q, c.k, c.v}
	for _, extra := range c.extras() {
		if *extra != nil {
			in = append(in, *extra)
		}
	}
	return in
}

// with returns the call with other inputs, in the order of inputs.
func (c call) with(in []*graph.Node) call {
	c.q, c.k, c.v = in[0], in[1], in[2]
	next := 3
	for _, extra := range c.extras() {
		if *extra != nil {
			*extra = in[next]
			next++
		}
	}
	return c
}

// stopped returns the call with gradients stopped.
func (c call) stopped() call {
	in := c.inputs()
	for i, x := range in {
		in[i] = graph.StopGradient(x)
	}
	return c.with(in)
}

func (c call) outShape(of dtypes.DType) shapes.Shape {
	return shapes.Make(of, c.batch(), c.queries(), c.heads(), c.e())
}

func (c call) statShape() shapes.Shape {
	return shapes.Make(c.statistics(), c.batch(), c.queries(), c.heads())
}

func (c call) check() error {
	q, k, v := c.q.Shape(), c.k.Shape(), c.v.Shape()
	for _, x := range []shapes.Shape{q, k, v} {
		if x.Rank() != 4 || x.DType != q.DType {
			return fmt.Errorf("flash: queries are %s, keys %s, values %s: want (B,T,H,D), (B,S,K,D) and (B,S,K,E) of "+
				"one type", q, k, v)
		}
	}
	b, s, kv := c.batch(), c.keys(), c.keyHeads()
	if !slices.Equal(k.Dimensions, []int{b, s, kv, c.d()}) || !slices.Equal(v.Dimensions, []int{b, s, kv, c.e()}) {
		return fmt.Errorf("flash: queries are %s, keys %s, values %s: want (B,T,H,D), (B,S,K,D) and (B,S,K,E)", q, k, v)
	}
	if q.Size() == 0 || k.Size() == 0 || v.Size() == 0 {
		return fmt.Errorf("flash: queries are %s, keys %s, values %s: none may be empty", q, k, v)
	}
	if c.heads()%kv != 0 {
		return fmt.Errorf("flash: %d query heads are not a multiple of %d key heads", c.heads(), kv)
	}
	if !slices.Contains([]dtypes.DType{dtypes.Float32, dtypes.Float64, dtypes.BFloat16, dtypes.Float16}, q.DType) {
		return fmt.Errorf("flash: queries are %s: want float32, float64, bfloat16 or float16", q.DType)
	}
	if (c.QuerySegments == nil) != (c.KeySegments == nil) {
		return fmt.Errorf("flash: only one of QuerySegments and KeySegments is set: give both or none")
	}
	wants := [][]int{{c.queries()}, {s}, {b, c.queries()}, {b, s}}
	for i, extra := range c.extras() {
		if want := shapes.Make(dtypes.Int32, wants[i]...); *extra != nil && !(*extra).Shape().Equal(want) {
			what := []string{"query positions", "key positions", "query segments", "key segments"}[i]
			return fmt.Errorf("flash: %s are %s: want %s", what, (*extra).Shape(), want)
		}
	}
	if err := c.Options.Validate(); err != nil {
		return err
	}
	return c.checkEngine()
}

// Validate returns an error for invalid options.
func (o Options) Validate() error {
	if o.Window < 0 || int64(o.Window) > 1<<30 {
		return fmt.Errorf("flash: Window is %d: give a number of positions up to 2³⁰, or 0 for none", o.Window)
	}
	if !(o.Scale >= 0 && o.Scale <= 1e30) {
		return fmt.Errorf("flash: Scale is %g: give a positive number, or 0 for 1/√D", o.Scale)
	}
	if o.Block.Queries < 0 || o.Block.Keys < 0 {
		return fmt.Errorf("flash: Block is %d queries and %d keys: give positive numbers, or 0 for the default",
			o.Block.Queries, o.Block.Keys)
	}
	return o.Implementation.Validate()
}

// Partial is attention to a part of the keys, which can be merged with attention to the others: for each query the
// largest score M and the sum D of e^(score−M), both (B,T,H), and the sum O of e^(score−M)·value, (B,T,H,E), in float32
// (float64 for float64). For a query that sees no key, M is −∞ and D and O are 0. Except for rounding, merging is
// associative and commutative, so blocks of keys may be processed in any order and on any device (Rabe and Staats 2021,
// arXiv:2112.05682, §2; ring attention, Liu et al. 2023, arXiv:2310.01889).
type Partial struct{ M, D, O *graph.Node }

// Attend returns the partial attention of queries (B,T,H,D) to keys (B,S,K,D) and values (B,S,K,E). It has no gradient;
// compute the gradients of the merged result with [Gradients]. It panics as [Attention] does.
func Attend(q, k, v *graph.Node, o Options) Partial {
	c := newPartialCall(q, k, v, o).stopped()
	out, m, d := c.forward(c.statistics())
	return Partial{M: m, D: d, O: graph.Mul(out, graph.InsertAxes(d, -1))}
}

// newPartialCall is newCall for engines that have partial results.
func newPartialCall(q, k, v *graph.Node, o Options) call {
	if o.Implementation == CuDNN {
		panic(fmt.Errorf("flash: the implementation %q gives no partial results: leave Implementation empty, or "+
			"give %q", string(CuDNN), string(Blocks)))
	}
	return newCall(q, k, v, o)
}

// Gradients returns the gradients of q, k and v, given the output gradient dOut (B,T,H,E) and the merged attention to
// all keys. k and v may be a part of the keys and values; then the sum of dq over all parts is the gradient of q. dOut
// has the type of q or of merged. The results have no gradients. It panics as [Attention] does, and on wrong shapes or
// types of merged and dOut.
func Gradients(q, k, v *graph.Node, merged Partial, dOut *graph.Node, o Options) (dq, dk, dv *graph.Node) {
	c := newPartialCall(q, k, v, o)
	for _, x := range []struct {
		what string
		is   *graph.Node
		want shapes.Shape
	}{
		{"merged.M", merged.M, c.statShape()}, {"merged.D", merged.D, c.statShape()},
		{"merged.O", merged.O, c.outShape(c.statistics())}, {"dOut", dOut, c.outShape(dOut.DType())},
	} {
		if !x.is.Shape().Equal(x.want) {
			panic(fmt.Errorf("flash: %s is %s: want %s", x.what, x.is.Shape(), x.want))
		}
	}
	if of := dOut.DType(); of != q.DType() && of != c.statistics() {
		panic(fmt.Errorf("flash: dOut is %s: want %s or %s", of, q.DType(), c.statistics()))
	}
	stop := graph.StopGradient
	return c.stopped().backward(stop(merged.Output(c.statistics())), stop(merged.M), stop(merged.D), stop(dOut))
}

// Merge returns the partial attention to the keys of both a and b.
func (a Partial) Merge(b Partial) Partial {
	m := graph.Max(a.M, b.M)
	// A query that has seen no key in either has maxima of −∞, whose difference would be NaN.
	base := graph.Where(graph.Equal(m, negInf(m)), graph.ZerosLike(m), m)
	wa, wb := graph.Exp(graph.Sub(a.M, base)), graph.Exp(graph.Sub(b.M, base))
	sum := func(x, y *graph.Node) *graph.Node {
		if x.Rank() > wa.Rank() {
			return graph.Add(graph.Mul(x, graph.InsertAxes(wa, -1)), graph.Mul(y, graph.InsertAxes(wb, -1)))
		}
		return graph.Add(graph.Mul(x, wa), graph.Mul(y, wb))
	}
	return Partial{M: m, D: sum(a.D, b.D), O: sum(a.O, b.O)}
}

// Output returns the attention's output O/D, (B,T,H,E), converted to a type. It is 0 for a query that has seen no key.
func (a Partial) Output(of dtypes.DType) *graph.Node {
	d := graph.InsertAxes(a.D, -1)
	some := graph.GreaterThan(d, graph.ZerosLike(d))
	return graph.ConvertDType(graph.Div(a.O, graph.Where(some, d, graph.OnesLike(d))), of)
}
