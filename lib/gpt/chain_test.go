package gpt_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
)

// The chain equals the full model for every architecture: the same parameters in the same order, and the same loss.
func TestChain(t *testing.T) {
	for i := range 16 {
		c := gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 4, Vocab: 5, Tied: i&1 != 0, Gated: i&2 != 0}
		if i&4 != 0 {
			c.Positions = gpt.Rotary
		}
		if i&8 != 0 {
			c.Norm, c.NoBias = gpt.RMSNorm, true
		}
		m, err := c.Chain()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(m.Params()), fmt.Sprint(c.Params()); got != want {
			t.Fatalf("%+v: parameters %s, want %s", c, got, want)
		}
		both := func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			p, x, y := c.Params().Nodes(in[:n]), in[n], in[n+1]
			return []*graph.Node{m.Loss(p, x, y), c.Loss(p, x, y)}
		}
		values, err := m.Init()
		if err != nil {
			t.Fatal(err)
		}
		x, y := tensors.FromValue([][]int32{{0, 1, 2, 3}}), tensors.FromValue([][]int32{{1, 2, 3, 4}})
		loss, err := devicetest.CallOn(devicetest.PureGo(), both, append(values, x, y)...)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := loss[0].Value(), loss[1].Value(); got != want {
			t.Errorf("%+v: loss %v, the full model's is %v", c, got, want)
		}
	}
}
