package gpt

import (
	"fmt"
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

func (c layers) attention(p params.Nodes, at string, x *graph.Node, noise *Noise, saved saved) *graph.Node {
	q, k, v := c.qkv(p, at, x)
	q, k, v = saved.after(recompute.QKV, q), saved.after(recompute.QKV, k), saved.after(recompute.QKV, v)
	y := saved.after(recompute.Mix, c.attend(q, k, v, noise, saved)) // (B,T,H,D)
	return c.rows(p, at+".o", graph.Reshape(y, y.Shape().Dim(0), y.Shape().Dim(1), y.Shape().Dim(2)*c.headWidth()),
		c.Compress)
}

// QKV returns the queries (B,T,H,D), keys and values (B,T,K,D) of the block at a path for x (B,T,C), computed by one
// matmul. With rotary positions, queries and keys are rotated for positions 0 to T−1. It panics if a parameter is
// missing or does not fit x.
func (c Config) QKV(p params.Nodes, at string, x *graph.Node) (q, k, v *graph.Node) {
	return c.oneDevice().qkv(p, at, x)
}

// qkv is QKV for the device's heads, and for all of its tokens.
func (c layers) qkv(p params.Nodes, at string, x *graph.Node) (q, k, v *graph.Node) {
	qkv := c.columns(p, x, at+".qkv")[0]
	b, t := qkv.Shape().Dim(0), qkv.Shape().Dim(1)
	queries, keys := c.heads(x.Graph())
	qkv = graph.Reshape(qkv, b, t, queries+2*keys, c.headWidth())
	part := func(from, n int) *graph.Node {
		return graph.Slice(qkv, graph.AxisRange(), graph.AxisRange(), graph.AxisRange(from, from+n))
	}
	q, k, v = part(0, queries), part(queries, keys), part(queries+keys, keys)
	if c.Positions == Rotary {
		positions := c.positions(x.Graph(), t)
		q, k = rotate(q, positions), rotate(k, positions)
	}
	return q, k, v
}

// CausalAttention is causal scaled dot-product attention (Vaswani et al. 2017, §3.2.1): softmax(q·kᵀ/√D)·v within each
// head, where a position attends to itself and those before. q and the result are (B,T,H,D), k and v (B,T,K,D) with a K
// that divides H: query head h uses key head h·K/H. It computes all scores, (B,H,T,T); the softmax is in float32 for
// half-precision inputs. It panics if the shapes do not fit.
func CausalAttention(q, k, v *graph.Node) *graph.Node { return layers{}.attend(q, k, v, nil, saved{}) }

func (c layers) attend(q, k, v *graph.Node, noise *Noise, saved saved) *graph.Node {
	if q.Rank() != 4 || k.Rank() != 4 || !k.Shape().Equal(v.Shape()) || q.Shape().Dim(2)%k.Shape().Dim(2) != 0 {
		panic(fmt.Errorf("gpt: queries have shape %s, keys %s, values %s: use (B,T,H,D), (B,T,K,D) and (B,T,K,D) with "+
			"a K that divides H", q.Shape(), k.Shape(), v.Shape()))
	}
	if c.contextParallel() {
		return c.sequence.Attention(q, k, v, c.Seq, flash.Causal())
	}
	if c.Flash {
		return flash.Attention(q, k, v, flash.Causal())
	}
	b, t, h, d := q.Shape().Dim(0), q.Shape().Dim(1), q.Shape().Dim(2), q.Shape().Dim(3)
	kv := k.Shape().Dim(2)
	q = graph.Reshape(graph.MulScalar(q, 1/math.Sqrt(float64(d))), b, t, kv, h/kv, d)
	scores := causal(precision.Widen(c.Matmul.Dot(q, []int{4}, []int{0, 2}, k, []int{3}, []int{0, 2}))) // (B,K,T,H/K,T)

	// Softmax. It divides by the sum after the second matmul, which has fewer outputs than weights. In half precision
	// it divides before, since weights that are not normalized might overflow.
	half := v.DType().IsHalfPrecision()
	largest := graph.StopGradient(graph.ReduceAndKeep(scores, graph.ReduceMax, -1))
	weights := saved.after(recompute.Scores, graph.Exp(saved.within(recompute.Scores, graph.Sub(scores, largest))))
	sum := graph.ReduceAndKeep(weights, graph.ReduceSum, -1) // (B,K,T,H/K,1)
	if half {
		weights = graph.Div(weights, sum)
	}
	weights = graph.ConvertDType(c.dropWeights(weights, noise), v.DType())
	y := c.Matmul.Dot(weights, []int{4}, []int{0, 1}, v, []int{1}, []int{0, 2}) // (B,K,T,H/K,D)
	if !half {
		y = graph.Div(saved.within(recompute.Mix, y), sum)
	}
	return graph.Reshape(graph.TransposeAllAxes(y, 0, 2, 1, 3, 4), b, t, h, d)
}

// causal sets the scores (B,K,T,H/K,T) of keys, on the last axis, after the query to −∞.
func causal(scores *graph.Node) *graph.Node {
	g, shape := scores.Graph(), scores.Shape()
	seen := graph.LowerTriangular(g, shape.Dim(-1)) // (T,T)
	seen = graph.BroadcastToDims(graph.InsertAxes(seen, 0, 0, 1), shape.Dimensions...)
	return graph.Where(seen, scores, graph.Infinity(g, scores.DType(), -1))
}
