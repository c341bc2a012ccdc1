package gpt

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/noise"
)

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
