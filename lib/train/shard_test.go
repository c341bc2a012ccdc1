package train_test

import (
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// partOf is a rank's shard of a chain: some of its blocks.
type partOf struct {
	recipe train.Recipe
	share  train.Shard
}

// shards gives the first blocks of the recipe's chain to one rank and the others to another. The first rank counts what
// both have.
func shares(r train.Recipe, first int) (parts [2]partOf) {
	whole := r.Model.(chain.Model)
	seen := map[string]bool{}
	for rank, blocks := range [][]chain.Block{whole.Blocks[:first], whole.Blocks[first:]} {
		p := &parts[rank]
		own := whole
		own.Blocks = blocks
		p.recipe = r
		p.recipe.Model = own
		for _, s := range own.Params() {
			p.share.Places = append(p.share.Places, whole.Params().Index(s.Name))
			p.share.Counted = append(p.share.Counted, !seen[s.Name])
			seen[s.Name] = true
		}
	}
	return parts
}

// state returns the shard's part of the full recipe's state.
func (p partOf) state(of train.Recipe, state []*graph.Node) (own []*graph.Node) {
	all := of.State()
	for _, s := range p.recipe.State() {
		own = append(own, state[all.Index(s.Name)])
	}
	return own
}

// updates makes an update of the full model, and one of the two shards, with their sums in one graph. It returns both
// as the full recipe lists the state, followed by the metrics.
func updates(r train.Recipe, state []*graph.Node, grads []*graph.Node) (whole, shared []*graph.Node) {
	loss := graph.Const(state[0].Graph(), float32(1.5))
	whole = r.Update(state, loss, grads)
	shared = make([]*graph.Node, len(whole))
	parts := shares(r, 2)
	var added [2][]*graph.Node // by rank
	update := func(rank int, sum func(x *graph.Node) *graph.Node) []*graph.Node {
		p := parts[rank]
		p.share.Sum = sum
		var own []*graph.Node
		for _, at := range p.share.Places {
			own = append(own, grads[at])
		}
		return p.recipe.UpdateShard(p.share, p.state(r, state), loss, own)
	}
	for rank := range parts {
		update(rank, func(x *graph.Node) *graph.Node {
			added[rank] = append(added[rank], x)
			return x
		})
	}
	all := r.State()
	for rank, p := range parts {
		n := 0
		out := update(rank, func(*graph.Node) *graph.Node {
			n++
			return graph.Add(added[0][n-1], added[1][n-1])
		})
		for i, s := range p.recipe.State() {
			at := all.Index(s.Name)
			if shared[at] != nil { // on both ranks: not the same is not a number
				same := graph.LogicalAll(graph.Equal(shared[at], out[i]))
				out[i] = graph.Where(same, out[i], graph.ConvertDType(graph.Const(out[i].Graph(), math.NaN()),
					out[i].DType()))
			}
			shared[at] = out[i]
		}
		shared[len(shared)-1] = out[len(out)-1]
	}
	return whole, shared
}

// TestShares compares updates of two shards of a model with those of the full model: they are the same bits unless
// gradients are clipped, whose norm is summed in another order. A parameter is in both shards. A gradient that is not
// finite on one rank skips the update on both, and stochastic rounding uses the full model's random bits.
func TestShares(t *testing.T) {
	type policyOf = func() precision.Policy
	named := func(name string, stochastic bool) policyOf {
		return func() precision.Policy {
			p := policy(t, name)
			p.StochasticUpdate = stochastic
			return p
		}
	}
	for name, c := range map[string]struct {
		policy   policyOf
		clip     float64
		overflow string // the parameter whose gradient is not finite
		bound    float64
		skipped  float32
	}{
		"float32":             {policy: named("fp32", false)},
		"clipped":             {policy: named("fp32", false), clip: 0.5, bound: 1e-6},
		"clipped by no scale": {policy: named("fp32", false), clip: 1e6, bound: 1e-6},
		"stochastic rounding": {policy: named("bf16-pure", true)},
		"loss scaling":        {policy: named("fp16", false)},
		"overflow here":       {policy: named("fp16", false), overflow: "in.w", skipped: 1},
		"overflow there":      {policy: named("fp16", false), overflow: "out.b", skipped: 1},
		"overflow of both":    {policy: named("fp16", false), overflow: "scale", clip: 1, skipped: 1},
	} {
		r := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1), Precision: c.policy(), Clip: c.clip,
			Seed: 5}
		state, err := r.Initial()
		must.Do(t, err)
		tree := r.Model.Params()
		fn := func(in []*graph.Node) []*graph.Node {
			g := in[0].Graph()
			var grads []*graph.Node
			for i, s := range tree {
				x := graph.Cos(graph.AddScalar(graph.MulScalar(graph.IotaFull(g, s.Shape), 1.7), float64(i)))
				if s.Name == c.overflow {
					x = graph.Add(x, graph.Const(g, float32(math.Inf(1))))
				}
				grads = append(grads, x)
			}
			whole, shared := updates(r, in, grads)
			return append(whole, shared...)
		}
		out, err := devicetest.CallOn(devicetest.PureGo(), fn, state...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := len(out) / 2
		for i := range n {
			what := "the metrics"
			if i < n-1 {
				what = r.State()[i].String()
			}
			if c.bound == 0 && !out[i].Equal(out[n+i]) {
				t.Errorf("%s: %s is %v, of the whole %v", name, what, out[n+i].Value(), out[i].Value())
			}
			if c.bound > 0 && !near(out[i], out[n+i], c.bound) {
				t.Errorf("%s: %s is %v, of the whole %v", name, what, out[n+i].Value(), out[i].Value())
			}
		}
		if made := tensors.MustCopyFlatData[float32](out[n-1])[2]; made != 1-c.skipped {
			t.Errorf("%s: %g updates are made", name, made)
		}
	}
}

// near tells whether float32 values are equal up to a relative error, and all others exactly.
func near(a, b *tensors.Tensor, bound float64) bool {
	if a.DType() != dtypes.Float32 {
		return a.Equal(b)
	}
	y := tensors.MustCopyFlatData[float32](b)
	for i, x := range tensors.MustCopyFlatData[float32](a) {
		if d := math.Abs(float64(x) - float64(y[i])); !(d <= bound*math.Abs(float64(x))) {
			return false
		}
	}
	return true
}

// nearLargest tells whether float32 values are equal up to an error relative to the tensor's largest, and all others
// exactly.
func nearLargest(a, b *tensors.Tensor, share float64) bool {
	if a.DType() != dtypes.Float32 {
		return a.Equal(b)
	}
	x, y := tensors.MustCopyFlatData[float32](a), tensors.MustCopyFlatData[float32](b)
	var largest, apart float64
	for i := range x {
		largest, apart = max(largest, math.Abs(float64(x[i]))), max(apart, math.Abs(float64(x[i])-float64(y[i])))
	}
	return apart <= share*largest // never with a NaN, which max keeps
}

// TestSharesRefused passes shards that do not fit.
func TestSharesRefused(t *testing.T) {
	r := train.Recipe{Model: line{[]float32{1, 2}}, Optimizer: optim.SGD(1)}
	state := must.Get(r.Initial())(t)
	sum := func(x *graph.Node) *graph.Node { return x }
	for name, s := range map[string]train.Shard{
		"no places": {Counted: []bool{true}, Sum: sum},
		"no counts": {Places: []int{0}, Sum: sum},
		"no sum":    {Places: []int{0}, Counted: []bool{true}},
	} {
		if _, err := devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
			return r.UpdateShard(s, in, graph.Const(in[0].Graph(), float32(0)), in[:1])
		}, state...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
