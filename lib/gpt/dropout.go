package gpt

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/noise"
)

// Noise says which values dropout sets to zero. Whether a value is dropped depends on the key, the place in the model
// and the value's own place in the whole batch, and on nothing else: a rank that has a part of the batch, or a second
// pass that recomputes a block, drops the same values as one device does in one pass.
type Noise struct {
	// Key is a scalar uint32; another key is other noise. A training run takes a new one for each step.
	Key *graph.Node
	// Row is the place of the first row in the whole batch, a scalar uint32; nil is 0.
	Row *graph.Node

	layer int
}

// forLayer returns the noise of a block; nil of nil.
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

// drop sets a share c.Dropout of the values of x (B,…) to zero and scales the others so that the mean stays: inverted
// dropout (Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting").
func (c Config) drop(x *graph.Node, n *Noise, at site) *graph.Node {
	if n == nil || c.Dropout == 0 {
		return x
	}
	bits := noise.Bits(n.Key, uint32(n.layer)*uint32(sites)+uint32(at), n.Row, x.Shape().Dimensions...)
	kept := graph.GreaterOrEqual(bits, graph.Scalar(x.Graph(), dtypes.Uint32, uint32(c.Dropout*(1<<32))))
	return graph.Where(kept, graph.MulScalar(x, 1/(1-c.Dropout)), graph.ZerosLike(x))
}
