package gpt

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Params lists the parameters, all float32: the token table "tok" (V,C), the table "pos" (Seq,C) of learned positions,
// the parameters of each block below its [BlockName], the last normalization "lnf", and the head "head.w" (C,V) unless
// it is tied. Weight matrices end in ".w" and have shape (in,out); biases end in ".b", normalization scales in ".g".
func (c Config) Params() params.Tree {
	tree := params.Tree{spec("tok", c.Vocab, c.Width)}
	if c.Positions != Rotary {
		tree = append(tree, spec("pos", c.Seq, c.Width))
	}
	for i := range c.Layers {
		tree = append(tree, c.blockParams(BlockName(i))...)
	}
	tree = append(tree, c.normParams("lnf")...)
	if !c.Tied {
		tree = append(tree, spec("head.w", c.Width, c.Vocab))
	}
	return tree
}

// BlockName returns the path of block i in the parameter tree: "h0" for the first.
func BlockName(i int) string { return fmt.Sprintf("h%d", i) }

// blockParams lists the parameters of a block.
func (c Config) blockParams(at string) params.Tree {
	d := c.headWidth()
	tree := c.normParams(at + ".ln1")
	// Columns of qkv: first q, k or v; then the head; then the feature.
	tree = append(tree, c.linearParams(at+".qkv", c.Width, (c.Heads+2*c.kvHeads())*d)...)
	tree = append(tree, c.linearParams(at+".o", c.Width, c.Width)...)
	tree = append(tree, c.normParams(at+".ln2")...)
	if c.Gated {
		tree = append(tree, c.linearParams(at+".gate", c.Width, c.hidden())...)
	}
	tree = append(tree, c.linearParams(at+".up", c.Width, c.hidden())...)
	return append(tree, c.linearParams(at+".down", c.hidden(), c.Width)...)
}

func (c Config) linearParams(at string, in, out int) params.Tree {
	if c.NoBias {
		return params.Tree{spec(at+".w", in, out)}
	}
	return params.Tree{spec(at+".w", in, out), spec(at+".b", out)}
}

func (c Config) normParams(at string) params.Tree {
	if c.Norm == RMSNorm {
		return params.Tree{spec(at+".g", c.Width)}
	}
	return params.Tree{spec(at+".g", c.Width), spec(at+".b", c.Width)}
}

// EmbedPaths lists the paths of the parameters that [Config.Embed] needs.
func (c Config) EmbedPaths() []string {
	if c.Positions == Rotary {
		return []string{"tok"}
	}
	return []string{"tok", "pos"}
}

// HeadPaths lists the paths of the parameters that [Config.Head] needs.
func (c Config) HeadPaths() []string {
	if c.Tied {
		return []string{"lnf", "tok"}
	}
	return []string{"lnf", "head"}
}

func spec(name string, dims ...int) params.Spec { return params.New(name, dtypes.Float32, dims...) }

// Init returns the initial values of the parameters, in the order of [Config.Params] and in float32: 1 for
// normalization scales, 0 for biases, and uniform with standard deviation 0.02 for matrices and tables. Each value
// depends only on its index in the model, so it is the same on any number of devices. An invalid configuration is an
// error.
func (c Config) Init() ([]*tensors.Tensor, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	tree := c.Params()
	values := make([]*tensors.Tensor, len(tree))
	for i, s := range tree {
		flat := make([]float32, s.Size())
		switch {
		case strings.HasSuffix(s.Name, ".g"):
			for k := range flat {
				flat[k] = 1
			}
		case !strings.HasSuffix(s.Name, ".b"):
			for k := range flat {
				u := float64(splitmix64(uint64(i)<<32+uint64(k))>>40) / (1 << 24) // in [0,1)
				flat[k] = float32((2*u - 1) * 0.02 * math.Sqrt(3))
			}
		}
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values, nil
}

// splitmix64 returns the first output of the generator of that name seeded with x (Steele, Lea & Flood 2014, "Fast
// Splittable Pseudorandom Number Generators"): a hash of x.
func splitmix64(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
