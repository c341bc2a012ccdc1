package gpt_test

import (
	"math/rand/v2"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
)

// backend is one device that the tests of this package share.
var backend = devicetest.One()

// randomModel returns parameters with no special values (no scale is 1 and no bias 0, which would hide mistakes), as
// tensors and as the plain model.
func randomModel(c gpt.Config, random *rand.Rand) ([]*tensors.Tensor, plainModel) {
	m := plainModel{c, make(map[string][]float64)}
	var ts []*tensors.Tensor
	for _, s := range c.Params() {
		f32, f64 := make([]float32, s.Size()), make([]float64, s.Size())
		for i := range f32 {
			f32[i] = float32(random.NormFloat64() / 2)
			f64[i] = float64(f32[i])
		}
		ts, m.p[s.Name] = append(ts, tensors.FromFlatDataAndDimensions(f32, s.Shape.Dimensions...)), f64
	}
	return ts, m
}

// randomTokens returns a batch of rows of tokens.
func randomTokens(random *rand.Rand, batch, seq, vocab int) [][]int32 {
	rows := make([][]int32, batch)
	for b := range rows {
		rows[b] = make([]int32, seq)
		for t := range rows[b] {
			rows[b][t] = random.Int32N(int32(vocab))
		}
	}
	return rows
}
