package gpt_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/recompute"
)

// mixture is a small model with experts.
func mixture() gpt.Config {
	return gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 6, Vocab: 11, Gated: true, Norm: gpt.RMSNorm, NoBias: true,
		Positions: gpt.Rotary, QKNorm: true, SharedExperts: 1, DenseLayers: 1,
		Experts: expert.Config{Experts: 4, PerToken: 2, Hidden: 6, Normalize: true, Balance: 0.1, ZLoss: 0.01}}
}

// lossAndGradients returns a model's loss and the gradients of all parameters, by name.
func lossAndGradients(t *testing.T, c gpt.Config, of func(c gpt.Config, p []*graph.Node,
	in ...*graph.Node) *graph.Node) (loss float32, gradients map[string][]float32) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	x, y := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
	out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		n := len(in) - 2
		loss := of(c, in[:n], in[n:]...)
		return append([]*graph.Node{loss}, graph.Gradient(loss, in[:n]...)...)
	}, append(must.Get(c.Init())(t), tensors.FromValue(x), tensors.FromValue(y))...))(t)
	gradients = map[string][]float32{}
	for i, s := range c.Params() {
		gradients[s.Name] = tensors.MustCopyFlatData[float32](out[1+i])
	}
	return tensors.ToScalar[float32](out[0]), gradients
}

func whole(c gpt.Config, p []*graph.Node, in ...*graph.Node) *graph.Node {
	return c.Loss(c.Params().Nodes(p), in[0], in[1])
}

// TestExperts checks that the losses of experts reach the router from every block, as a whole and as a chain of blocks,
// and do not change the loss; that every expert learns; and that recomputation changes nothing but rounding.
func TestExperts(t *testing.T) {
	c := mixture()
	loss, gradients := lossAndGradients(t, c, whole)
	apart, ofChain := lossAndGradients(t, c, func(c gpt.Config, p []*graph.Node, in ...*graph.Node) *graph.Node {
		m := must.Get(chain.Of(c))(t)
		return m.Loss(c.Params().Nodes(p), in[0], in[1])
	})
	plain := c
	plain.Experts.Balance, plain.Experts.ZLoss = 0, 0
	alone, without := lossAndGradients(t, plain, whole)
	again := c
	again.Recompute = recompute.Block
	_, recomputed := lossAndGradients(t, again, whole)
	if loss != apart || loss != alone {
		t.Errorf("the loss is %g, of the chain %g, and without the experts' own losses %g", loss, apart, alone)
	}
	for name, got := range gradients {
		same(t, name+" of the chain", ofChain[name], got, 1e-6)
		same(t, name+" recomputed", recomputed[name], got, 1e-6)
		differs := !slices.Equal(got, without[name])
		if router := strings.HasSuffix(name, ".router.w"); router && !differs {
			t.Errorf("the balance does not reach %s", name)
		}
		if n := len(got) / c.Experts.Experts; strings.Contains(name, ".experts.") {
			for e := range c.Experts.Experts {
				if !slices.ContainsFunc(got[e*n:(e+1)*n], func(g float32) bool { return g != 0 }) {
					t.Errorf("%s: expert %d has no gradient", name, e)
				}
			}
		}
	}
}

// same compares numbers.
func same(t *testing.T, what string, got, want []float32, bound float64) {
	t.Helper()
	most := 0.
	for _, w := range want {
		most = max(most, math.Abs(float64(w)))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i] - w)); !(d <= bound*(1+most)) {
			t.Fatalf("%s, element %d: %g, want %g", what, i, got[i], w)
		}
	}
}

// TestExpertsRefused has configurations with experts that cannot be.
func TestExpertsRefused(t *testing.T) {
	for says, change := range map[string]func(c *gpt.Config){
		"Config.Experts: ": func(c *gpt.Config) { c.Experts.PerToken = 5 },
		"DenseLayers 3":    func(c *gpt.Config) { c.DenseLayers = 3 },
		"SharedExperts":    func(c *gpt.Config) { c.Experts = expert.Config{} },
		"Compress":         func(c *gpt.Config) { c.Compress = "int8" },
	} {
		c := mixture()
		if change(&c); c.Validate() == nil || !strings.Contains(c.Validate().Error(), says) {
			t.Errorf("%v, want %q in it", c.Validate(), says)
		}
	}
}
