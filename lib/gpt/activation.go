package gpt

import (
	"cmp"
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/compress"
)

// activate is the perceptron's activation of its up projection or, gated, of its up and gate projections, each
// (B,T,hidden).
func (c Config) activate(h []*graph.Node) *graph.Node {
	if len(h) == 1 && c.Activation == ReLU && c.Compress+c.CompressReLU != "" {
		return compress.ReLU(h[0]) // a bit is all that its gradient needs
	}
	of := func(h []*graph.Node) *graph.Node {
		last := h[len(h)-1] // what the activation is applied to
		switch {
		case c.Activation == ReLU:
			last = graph.Max(last, graph.ZerosLike(last))
		case c.Gated:
			last = siLU(last)
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

// afterActivation is the codec in which the activation's output is kept.
func (c Config) afterActivation() string {
	if c.Activation == ReLU {
		return cmp.Or(c.CompressReLU, c.Compress)
	}
	return c.Compress
}

// mustCodec is codec that panics at a wrong name.
func mustCodec(name string) compress.Codec {
	found, err := codec(name)
	if err != nil {
		panic(fmt.Errorf("gpt: %w", err))
	}
	return found
}

// codec is that of a name; nil of none.
func codec(name string) (compress.Codec, error) {
	if name == "" {
		return nil, nil
	}
	return compress.Parse(name)
}
