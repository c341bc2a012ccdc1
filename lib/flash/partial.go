package flash

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

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
