package gpt

import (
	"fmt"
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
		fill(flat, s.Name, i, 0)
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values, nil
}

// InitPart fills dst with the initial values of len(dst) consecutive elements of one parameter, in row-major order from
// element first on, for a device that has a shard. index is the parameter's index in [Config.Params]. It is an error if
// the configuration is invalid, or the index or the elements are outside of the model.
func (c Config) InitPart(index, first int, dst []float32) error {
	if err := c.Validate(); err != nil {
		return err
	}
	tree := c.Params()
	if index < 0 || index >= len(tree) {
		return fmt.Errorf("gpt: parameter #%d of a model with %d: count from 0", index, len(tree))
	}
	s := tree[index]
	if first < 0 || first > s.Size()-len(dst) {
		return fmt.Errorf("gpt: elements %d to %d of %s: choose elements below %d", first, first+len(dst), s, s.Size())
	}
	fill(dst, s.Name, index, first)
	return nil
}

// fill is InitPart for elements that are known to be in the model.
func fill(dst []float32, name string, index, first int) {
	switch {
	case strings.HasSuffix(name, ".g"):
		for i := range dst {
			dst[i] = 1
		}
	case strings.HasSuffix(name, ".b"):
		clear(dst)
	default:
		for i := range dst {
			u := float64(splitmix64(uint64(index)<<32+uint64(first+i))>>40) / (1 << 24) // in [0,1)
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
