package gpt

import (
	"cmp"
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/compress"
)

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
