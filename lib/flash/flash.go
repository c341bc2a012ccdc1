// Package flash computes attention without ever holding the scores of all pairs of tokens: FlashAttention (Dao et al.
// 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691), by online softmax (Milakov and Gimelshein 2018,
// arXiv:1805.02867) over blocks of keys. Its memory grows with the length of the sequence, not with its square. Package
// online derives it step by step in plain Go.
package flash

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Options say what attention is wanted. The zero value is that of every query to every key.
type Options struct {
	Mask
	Scale  float64 // of the scores, positive; 0: 1/√D
	Engine Engine  // what computes it; Auto if empty
	Block  Block   // sizes for the engine Blocks
}

// Attention returns softmax(scale·q·kᵀ)·v within each head, over the keys that the mask lets a query see: scaled
// dot-product attention (Vaswani et al. 2017, §3.2.1). A query that sees no key gets zeros.
//
// q is (B,T,H,D), k (B,S,K,D), v (B,S,K,E) and the result (B,T,H,E), all of one type: float32, bfloat16 or float16 (and
// float64 with the engine Blocks). K divides H; query head h attends with key head h·K/H: grouped-query attention
// (Ainslie et al. 2023, arXiv:2305.13245). Softmax and sums are in float32 whatever the type (float64 for float64).
//
// The gradient is FlashAttention's: it keeps the operands, the result and the log-sum-exp of each query's scores, and
// computes the scores again. The log-sum-exp is kept as two numbers, the largest score and the sum of the exponentials
// less it: its own rounding, where scores are large, would be most of the error. Attention works under Checkpoint, on
// shards of the batch or of the heads, and in graphs compiled with xla.CompileAuto.
//
// It panics on shapes or types that do not fit and on options that Validate refuses.
func Attention(q, k, v *graph.Node, o Options) *graph.Node {
	c := newCall(q, k, v, o)
	if c.engine() == CuDNN {
		return c.cudnn()
	}
	out, _, _ := c.differentiable()
	return out
}

// WithLogSumExp is Attention that also returns the log-sum-exp of the scores of each query, (B,T,H) in float32 (float64
// for float64): −∞ of one that sees no key. Gradients do not flow through it.
func WithLogSumExp(q, k, v *graph.Node, o Options) (out, logSumExp *graph.Node) {
	c := newCall(q, k, v, o)
	if c.engine() == CuDNN {
		_, m, d := c.stopped().blocksForward(q.DType())
		return c.cudnn(), logSumExpOf(m, d)
	}
	out, m, d := c.differentiable()
	return out, logSumExpOf(graph.StopGradient(m), graph.StopGradient(d))
}

// differentiable is forward with backward as its gradient.
func (c call) differentiable() (out, m, d *graph.Node) {
	results := autodiff.Custom(c.inputs(), func(in []*graph.Node) []*graph.Node {
		out, m, d := c.with(in).forward(c.q.DType())
		return []*graph.Node{out, m, d}
	}, func(in, out, gradient []*graph.Node) []*graph.Node {
		dq, dk, dv := c.with(in).backward(out[0], out[1], out[2], gradient[0])
		return append([]*graph.Node{dq, dk, dv}, make([]*graph.Node, len(in)-3)...)
	})
	return results[0], results[1], results[2]
}

// logSumExpOf returns m + log(d), and −∞ for a query that sees nothing.
func logSumExpOf(m, d *graph.Node) *graph.Node {
	return graph.Where(graph.Equal(d, graph.ZerosLike(d)), negInf(m), graph.Add(m, graph.Log(d)))
}

func negInf(like *graph.Node) *graph.Node {
	return graph.BroadcastToDims(graph.Infinity(like.Graph(), like.DType(), -1), like.Shape().Dimensions...)
}

// call is one attention.
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

// statistics is the type of maxima, sums and accumulators.
func (c call) statistics() dtypes.DType {
	if c.q.DType() == dtypes.Float64 {
		return dtypes.Float64
	}
	return dtypes.Float32
}
