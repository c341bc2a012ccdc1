package gpt_test

import (
	"math/rand/v2"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
)

// call runs a graph function once in plain Go.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	return devicetest.CallOn(devicetest.PureGo(), fn, args...)
}

// randomConfig returns a small model of any architecture.
func randomConfig(random *rand.Rand) gpt.Config {
	kv := 1 + random.IntN(3)
	heads := kv * (1 + random.IntN(3))
	c := gpt.Config{Layers: 1 + random.IntN(3), Width: heads * 2 * (1 + random.IntN(3)), Heads: heads,
		Seq: 1 + random.IntN(9), Vocab: 2 + random.IntN(20), KVHeads: kv, Hidden: random.IntN(20),
		Gated: random.IntN(2) == 0, Tied: random.IntN(2) == 0, NoBias: random.IntN(2) == 0}
	if random.IntN(2) == 0 {
		c.Norm = gpt.RMSNorm
	}
	if random.IntN(2) == 0 {
		c.Positions = gpt.Rotary
	}
	return c
}

// randomModel returns parameters without special values (no scale is 1 and no bias 0, which would hide mistakes), as
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

// randomTokens returns a batch of random sequences.
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
