package flash

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Partial is attention to some of the keys, in a form that can be merged with that to others: for each query the
// largest score M and the sum D of e^(score−M), both (B,T,H), and the sum O of e^(score−M)·value, (B,T,H,E), in float32
// (float64 for float64). Of a query that sees no key M is −∞, and D and O are 0. Merging is associative and
// commutative, but for rounding: so blocks of keys may be attended to in any order and place (Rabe and Staats 2021,
// arXiv:2112.05682, §2; ring attention, Liu et al. 2023, arXiv:2310.01889).
type Partial struct{ M, D, O *graph.Node }

// Attend returns the partial attention of queries (B,T,H,D) to keys (B,S,K,D) and values (B,S,K,E). It has no gradient:
// Gradients gives that of what the partial results are merged to. It panics as Attention does.
func Attend(q, k, v *graph.Node, o Options) Partial {
	c := newPartialCall(q, k, v, o).stopped()
	out, m, d := c.forward(c.statistics())
	return Partial{M: m, D: d, O: graph.Mul(out, graph.InsertAxes(d, -1))}
}

// newPartialCall is newCall for engines that give partial results.
func newPartialCall(q, k, v *graph.Node, o Options) call {
	if o.Engine == CuDNN {
		panic(fmt.Errorf("flash: the engine %q gives no partial results: leave it open, or give %q", string(CuDNN),
			string(Blocks)))
	}
	return newCall(q, k, v, o)
}

// Gradients returns the gradients of q, k and v for the gradient dOut, (B,T,H,E), that arrives at attention's output,
// where whole is the attention to all keys and k and v may be some of them: then dk and dv are theirs, and dq is their
// part of a sum. dOut has the type of q or of whole. It is made of what Attention's gradient is made of, and has no
// gradient itself. It panics as Attention does, and on a whole or a dOut that does not fit.
func Gradients(q, k, v *graph.Node, whole Partial, dOut *graph.Node, o Options) (dq, dk, dv *graph.Node) {
	c := newPartialCall(q, k, v, o)
	for _, x := range []struct {
		what string
		is   *graph.Node
		want shapes.Shape
	}{
		{"whole.M", whole.M, c.statShape()}, {"whole.D", whole.D, c.statShape()},
		{"whole.O", whole.O, c.outShape(c.statistics())}, {"dOut", dOut, c.outShape(dOut.DType())},
	} {
		if !x.is.Shape().Equal(x.want) {
			panic(fmt.Errorf("flash: %s is %s: want %s", x.what, x.is.Shape(), x.want))
		}
	}
	if of := dOut.DType(); of != q.DType() && of != c.statistics() {
		panic(fmt.Errorf("flash: dOut is %s: want %s or %s", of, q.DType(), c.statistics()))
	}
	stop := graph.StopGradient
	return c.stopped().backward(stop(whole.Output(c.statistics())), stop(whole.M), stop(whole.D), stop(dOut))
}

// Merge returns the attention to the keys of both.
func (a Partial) Merge(b Partial) Partial {
	m := graph.Max(a.M, b.M)
	// Where neither has seen a key, both maxima are −∞ and their difference would be NaN.
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

// Output returns the attention's result, (B,T,H,E) in the type: O/D, and 0 for a query that has seen no key.
func (a Partial) Output(of dtypes.DType) *graph.Node {
	d := graph.InsertAxes(a.D, -1)
	some := graph.GreaterThan(d, graph.ZerosLike(d))
	return graph.ConvertDType(graph.Div(a.O, graph.Where(some, d, graph.OnesLike(d))), of)
}

// LogSumExp returns the log of the sum of the exponentials of each query's scores, (B,T,H): M + log D.
func (a Partial) LogSumExp() *graph.Node { return logSumExpOf(a.M, a.D) }
