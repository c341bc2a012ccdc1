package gpt

import (
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Linear is the linear layer at a path: x·w + b (…,out) for x (…,in), with the parameters ".w" (in,out) and ".b" (out);
// there is no b with [Config.NoBias]. It panics if the shapes do not fit.
func (c Config) Linear(p params.Nodes, at string, x *graph.Node) *graph.Node {
	return c.biased(p, at, c.saving(c.Compress)(x, p.Get(at+".w")))
}

// saving returns the matmul x·w that saves x in a codec.
func (c Config) saving(codec string) func(x, w *graph.Node) *graph.Node {
	if codec := mustCodec(codec); codec != nil {
		return func(x, w *graph.Node) *graph.Node { return compress.Dot(x, w, codec, c.Matmul) }
	}
	return c.matmul
}

// biased adds the bias at a path, unless the model has none.
func (c Config) biased(p params.Nodes, at string, y *graph.Node) *graph.Node {
	if c.NoBias {
		return y
	}
	// Broadcast in float32, so that the bias's gradient accumulates over the positions in float32.
	b := graph.BroadcastToDims(graph.ExpandLeftToRank(precision.Widen(p.Get(at+".b")), y.Rank()),
		y.Shape().Dimensions...)
	return graph.Add(y, graph.ConvertDType(b, y.DType()))
}

// matmul returns x·w (…,out) for x (…,in) and w (in,out).
func (c Config) matmul(x, w *graph.Node) *graph.Node {
	return c.Matmul.Dot(x, []int{-1}, nil, w, []int{0}, nil)
}

// epsilon is added to the variance or mean square in normalizations.
const epsilon = 1e-5

// Normalize applies the normalization [Config.Norm] to x (…,C), with the parameters at a path. It computes in float32
// and returns x's type. It panics if the shapes do not fit.
func (c Config) Normalize(p params.Nodes, at string, x *graph.Node) *graph.Node {
	x32, g := precision.Widen(x), precision.Widen(p.Get(at+".g"))
	if c.Norm == RMSNorm {
		return graph.ConvertDType(rmsNormalize(x32, g), x.DType())
	}
	return graph.ConvertDType(layerNormalize(x32, g, precision.Widen(p.Get(at+".b"))), x.DType())
}

// layerNormalize returns (x−mean)/√(variance+epsilon)·g + b over the last axis of x (…,C), for a scale g and a bias b
// (C) (Ba, Kiros & Hinton 2016, "Layer Normalization").
func layerNormalize(x, g, b *graph.Node) *graph.Node {
	centred := graph.Sub(x, graph.ReduceAndKeep(x, graph.ReduceMean, -1))
	return graph.Add(rmsNormalize(centred, g), graph.ExpandLeftToRank(b, x.Rank()))
}

// rmsNormalize returns x/√(mean square+epsilon)·g over the last axis of x (…,C), for a scale g (C) (Zhang & Sennrich
// 2019, "Root Mean Square Layer Normalization").
func rmsNormalize(x, g *graph.Node) *graph.Node {
	square := graph.ReduceAndKeep(graph.Square(x), graph.ReduceMean, -1) // (…,1)
	y := graph.Div(x, graph.Sqrt(graph.AddScalar(square, epsilon)))
	return graph.Mul(y, graph.ExpandLeftToRank(g, x.Rank()))
}

// GELU returns ½x(1 + tanh(√(2/π)(x + 0.044715x³))), the tanh form of the Gaussian error linear unit (Hendrycks &
// Gimpel 2016, "Gaussian Error Linear Units", §2), elementwise for x of any shape. It panics if x is not a float.
func GELU(x *graph.Node) *graph.Node {
	cubic := graph.Mul(x, graph.AddScalar(graph.MulScalar(graph.Square(x), 0.044715), 1)) // x + 0.044715x³
	return graph.Mul(graph.MulScalar(x, 0.5), graph.AddScalar(graph.Tanh(graph.MulScalar(cubic, math.Sqrt(2/math.Pi))),
		1))
}

// siLU returns x·sigmoid(x) elementwise (Hendrycks & Gimpel 2016, §3; Ramachandran et al. 2017, "Swish").
func siLU(x *graph.Node) *graph.Node { return graph.Mul(x, graph.Sigmoid(x)) }
