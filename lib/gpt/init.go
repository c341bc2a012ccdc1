package gpt

import (
	"math"
	"strings"

	"github.com/gomlx/gomlx/core/tensors"
)

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
		fill(flat, s.Name, i)
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values, nil
}

// fill sets the initial values of the parameter with an index.
func fill(dst []float32, name string, index int) {
	switch {
	case strings.HasSuffix(name, ".g"):
		for i := range dst {
			dst[i] = 1
		}
	case strings.HasSuffix(name, ".b"):
		clear(dst)
	default:
		for i := range dst {
			u := float64(splitmix64(uint64(index)<<32+uint64(i))>>40) / (1 << 24) // in [0,1)
			dst[i] = float32((2*u - 1) * 0.02 * math.Sqrt(3))
		}
	}
}

// splitmix64 returns the first output of the generator of that name seeded with x (Steele, Lea & Flood 2014, "Fast
// Splittable Pseudorandom Number Generators"): a hash of x.
func splitmix64(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
