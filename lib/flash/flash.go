// Package flash computes attention without storing the scores of all pairs of tokens, so that its memory is linear in
// the sequence length: FlashAttention (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691), by online
// softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) over blocks of keys. Package online derives it step by step
// in plain Go.
package flash

import (
	"math"

	"github.com/gomlx/compute/dtypes"
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
	out, _, _ := c.differentiable()
	return out
}

// WithLogSumExp is Attention that also returns the log-sum-exp of each query's scores, (B,T,H) in float32 (float64 for
// float64); it is −∞ for a query that sees no key. No gradient flows through the log-sum-exp.
func WithLogSumExp(q, k, v *graph.Node, o Options) (out, logSumExp *graph.Node) {
	c := newCall(q, k, v, o)
	if c.engine() == CuDNN {
		_, m, d := c.stopped().blocksForward(q.DType())
		return c.cudnn(), logSumExpOf(m, d)
	}
	out, m, d := c.differentiable()
	return out, logSumExpOf(graph.StopGradient(m), graph.StopGradient(d))
}

// differentiable calls forward, with backward as its gradient.
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

// logSumExpOf returns m + log(d), or −∞ for a query that sees no key.
func logSumExpOf(m, d *graph.Node) *graph.Node {
	return graph.Where(graph.Equal(d, graph.ZerosLike(d)), negInf(m), graph.Add(m, graph.Log(d)))
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
