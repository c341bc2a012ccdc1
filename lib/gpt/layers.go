package gpt

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/fused"
	"github.com/shardbook/shardbook/lib/noise"
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
	return fused.AddBias(y, p.Get(at+".b"))
}

// matmul returns x·w (…,out) for x (…,in) and w (in,out).
func (c Config) matmul(x, w *graph.Node) *graph.Node {
	return c.Matmul.Dot(x, []int{-1}, nil, w, []int{0}, nil)
}

// epsilon is added to the variance or mean square in normalizations.
const epsilon = 1e-5

// Normalize applies the normalization [Config.Norm] to x (…,C), with the parameters g and b (C) at a path: LayerNorm,
// (x−mean)/√(variance+epsilon)·g + b over the last axis (Ba, Kiros & Hinton 2016, "Layer Normalization"), or RMSNorm,
// x/√(mean square+epsilon)·g (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"). It computes in float32
// and returns x's type. It panics if the shapes do not fit.
func (c Config) Normalize(p params.Nodes, at string, x *graph.Node) *graph.Node {
	parameter := func(name string) *graph.Node {
		return graph.ExpandLeftToRank(precision.Widen(p.Get(at+name)), x.Rank())
	}
	y := precision.Widen(x)
	if c.Norm != RMSNorm {
		y = graph.Sub(y, graph.ReduceAndKeep(y, graph.ReduceMean, -1))
	}
	square := graph.ReduceAndKeep(graph.Square(y), graph.ReduceMean, -1) // (…,1)
	y = graph.Mul(graph.Div(y, graph.Sqrt(graph.AddScalar(square, epsilon))), parameter(".g"))
	if c.Norm != RMSNorm {
		y = graph.Add(y, parameter(".b"))
	}
	return graph.ConvertDType(y, x.DType())
}

// GELU is [fused.GELU].
func GELU(x *graph.Node) *graph.Node { return fused.GELU(x) }

// activate applies the MLP's activation to the up projection or, gated, to the up and gate projections, each
// (B,T,hidden).
func (c Config) activate(h []*graph.Node) *graph.Node {
	if len(h) == 1 && c.Activation == ReLU && c.Compress+c.CompressReLU != "" {
		return compress.ReLU(h[0]) // its gradient needs one bit per element
	}
	of := func(h []*graph.Node) *graph.Node {
		last := h[len(h)-1] // the input of the activation
		switch {
		case c.Activation == ReLU:
			last = graph.Max(last, graph.ZerosLike(last))
		case c.Gated:
			last = graph.Mul(last, graph.Sigmoid(last)) // SiLU (Hendrycks & Gimpel 2016, §3)
		default:
			last = GELU(last)
		}
		if c.Gated {
			return graph.Mul(last, h[0])
		}
		return last
	}
	if codec := mustCodec(c.Compress); codec != nil {
		return compress.Keep(codec, h, nil, func(h, _ []*graph.Node) []*graph.Node { return []*graph.Node{of(h)} })[0]
	}
	return of(h)
}

// afterActivation names the codec for the activation's output.
func (c Config) afterActivation() string {
	if c.Activation == ReLU {
		return cmp.Or(c.CompressReLU, c.Compress)
	}
	return c.Compress
}

// mustCodec is codec, and panics for an invalid name.
func mustCodec(name string) compress.Codec {
	found, err := codec(name)
	if err != nil {
		panic(fmt.Errorf("gpt: %w", err))
	}
	return found
}

// codec parses a codec's name; nil for "".
func codec(name string) (compress.Codec, error) {
	if name == "" {
		return nil, nil
	}
	return compress.Parse(name)
}

// rotaryBase is the base of the angles, as in Su et al. and Llama.
const rotaryBase = 10000

// rotate rotates each pair of features (i, i+D/2) of x (B,T,H,D) by the angle position·rotaryBase^(−2i/D), so that the
// dot product of a query and a key depends on their distance (Su et al. 2021, "RoFormer: Enhanced Transformer with
// Rotary Position Embedding", §3.4; halves paired as in GPT-NeoX and Llama). Positions (T) are integers. It computes in
// float32 and returns x's type. It panics if the shapes do not fit or D is odd.
func rotate(x, positions *graph.Node) *graph.Node {
	s := x.Shape()
	if s.Rank() != 4 || s.Dim(3)%2 != 0 || positions.Rank() != 1 || positions.Shape().Dim(0) != s.Dim(1) {
		panic(fmt.Errorf("gpt: rotary positions of shape %s for %s: use (T) and (B,T,H,D) with an even D",
			positions.Shape(), s))
	}
	half, x32 := s.Dim(3)/2, precision.Widen(x)
	index := graph.Iota(x.Graph(), shapes.Make(x32.DType(), 1, half), 1)
	frequency := graph.Exp(graph.MulScalar(index, -2*math.Log(rotaryBase)/float64(s.Dim(3)))) // (1,D/2)
	angle := graph.Mul(graph.InsertAxes(graph.ConvertDType(positions, x32.DType()), -1), frequency)
	angle = graph.InsertAxes(angle, 0, 1) // (T,D/2) to (1,T,1,D/2)
	cos, sin := graph.Cos(angle), graph.Sin(angle)
	a := graph.Slice(x32, graph.AxisRange().Spacer(), graph.AxisRange(0, half))
	b := graph.Slice(x32, graph.AxisRange().Spacer(), graph.AxisRange(half))
	turned := graph.Concatenate([]*graph.Node{
		graph.Sub(graph.Mul(a, cos), graph.Mul(b, sin)),
		graph.Add(graph.Mul(b, cos), graph.Mul(a, sin)),
	}, -1)
	return graph.ConvertDType(turned, x.DType())
}

// Noise chooses which values dropout sets to zero. Whether a value is dropped depends only on the key, the place in the
// model and the value's index in the full batch. So a rank that has a shard of the batch, and a pass that recomputes a
// block, drop the same values as one device does in one pass.
type Noise struct {
	// Key is a uint32 scalar that chooses the random numbers. Use a new one for each step.
	Key *graph.Node
	// Row is the index of the first sequence in the full batch, a uint32 scalar; nil is 0.
	Row *graph.Node

	layer int
}

// forLayer returns the noise of a block; nil for nil.
func (n *Noise) forLayer(i int) *Noise {
	if n == nil {
		return nil
	}
	return &Noise{Key: n.Key, Row: n.Row, layer: i + 1}
}

// site is a place where values are dropped.
type site uint32

const (
	afterEmbedding site = iota
	inAttention
	afterAttention
	afterMLP
	sites
)

// dropTokens drops values of x (B,T,C), the device's tokens.
func (c layers) dropTokens(x *graph.Node, n *Noise, at site) *graph.Node {
	if n == nil || c.Dropout == 0 {
		return x
	}
	axes := noise.Full(x.Shape().Dimensions)
	axes[0] = noise.Rows(n.Row, x.Shape().Dim(0))
	if !c.hasAllTokens() {
		// with dropout, only tensor parallelism splits the tokens of a sequence
		ranks := c.tensor.Size(x.Graph())
		axes[1] = noise.Axis{Whole: axes[1].Whole * ranks, Index: c.tokenPositions(x.Graph(), axes[1].Whole*ranks)}
	}
	return c.drop(x, n, at, axes)
}

// dropWeights drops attention weights (B,K,T,H/K,T), of the device's heads.
func (c layers) dropWeights(x *graph.Node, n *Noise) *graph.Node {
	if n == nil || c.Dropout == 0 {
		return x
	}
	axes := noise.Full(x.Shape().Dimensions)
	axes[0] = noise.Rows(n.Row, x.Shape().Dim(0))
	if !c.tensor.Alone() {
		keys, queries := c.headIndices(x.Graph())
		axes[1], axes[3] = noise.Axis{Whole: c.kvHeads(), Index: keys},
			noise.Axis{Whole: c.Heads / c.kvHeads(), Index: queries}
	}
	return c.drop(x, n, inAttention, axes)
}

// drop is inverted dropout (Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
// Overfitting"): it sets values of x (B,…) to zero with probability c.Dropout and scales the others so that the mean
// stays. The axes say which indices of the full x the device has.
func (c Config) drop(x *graph.Node, n *Noise, at site, axes []noise.Axis) *graph.Node {
	bits := noise.BitsAt(n.Key, uint32(n.layer)*uint32(sites)+uint32(at), axes...)
	kept := graph.GreaterOrEqual(bits, graph.Scalar(x.Graph(), dtypes.Uint32, uint32(c.Dropout*(1<<32))))
	return graph.Where(kept, graph.MulScalar(x, 1/(1-c.Dropout)), graph.ZerosLike(x))
}
