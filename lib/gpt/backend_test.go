package gpt_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/xla"
)

// backend is one device that the tests of this package share.
var backend *xla.Backend

func TestMain(m *testing.M) {
	var err error
	if backend, err = xla.Open(xla.Devices(1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	backend.Close()
	os.Exit(code)
}

// call builds, compiles and runs a graph function once.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	e, err := graph.NewExec(backend, fn)
	if err != nil {
		return nil, err
	}
	defer e.Finalize()
	return e.Call(args)
}

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
