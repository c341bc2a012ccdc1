package gpt_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

// policies are the named ones, and some others.
var policies = []recompute.Policy{recompute.Block, recompute.SubLayers, recompute.Every(2), recompute.Sqrt,
	recompute.Selective,
	"ops:act,norm1,norm2", "ops:qkv", "ops:down", "ops:mid,mix"}

// randomPlan is a policy that recomputes any operations of any blocks.
func randomPlan(random *rand.Rand, blocks int) recompute.Policy {
	plan := make(recompute.Plan, blocks)
	for i := range plan {
		for _, op := range recompute.AllOps() {
			if random.IntN(2) == 0 {
				plan[i] |= recompute.SetOf(op)
			}
		}
	}
	return plan.Policy()
}

// gradients builds the gradients of all parameters and the loss with dropout: of parameters, inputs, targets and a key.
func gradients(c gpt.Config) func(in []*graph.Node) []*graph.Node {
	tree := c.Params()
	return func(in []*graph.Node) []*graph.Node {
		n := len(tree)
		loss := c.NoisyLoss(tree.Nodes(in[:n]), in[n], in[n+1], in[n+2], nil)
		return append(graph.Gradient(loss, in[:n]...), loss)
	}
}

// argsOf returns random arguments of gradients.
func argsOf(c gpt.Config, random *rand.Rand, batch int) []*tensors.Tensor {
	w, _ := randomModel(c, random)
	tokens := func() *tensors.Tensor { return tensors.FromValue(randomTokens(random, batch, c.Seq, c.Vocab)) }
	return append(w, tokens(), tokens(), tensors.FromScalar(uint32(7)))
}

// asWritten returns the gradients and the loss on the backend that runs operations as written.
func asWritten(c gpt.Config, args []*tensors.Tensor) []*tensors.Tensor {
	return must.Value(devicetest.CallOn(devicetest.WithBarriers(), gradients(c), args...))
}

// onXLA returns them on a device, and XLA's temporary memory.
func onXLA(c gpt.Config, args []*tensors.Tensor) (results []*tensors.Tensor, temporary int64) {
	mesh := must.Value(devicetest.One().Mesh(xla.Axis("data", 1)))
	p := must.Value(xla.Compile(mesh, gradients(c), xla.In(xla.Replicated()).Gives(xla.Replicated())))
	defer p.Close()
	var in []any
	for _, x := range args {
		in = append(in, must.Value(x.LocalClone()))
	}
	for _, o := range must.Value(p.Call(in...)) {
		results = append(results, must.Value(o.Shards()[0].LocalClone()))
	}
	return results, must.Value(p.Memory()).Temporary
}

// flat returns the elements of all tensors.
func flat(of []*tensors.Tensor) (all []float32) {
	for _, x := range of {
		all = append(all, tensors.MustCopyFlatData[float32](x)...)
	}
	return all
}

// Recomputation gives the same values, so for any plan, loss and gradients are the same bits on the backend that runs
// operations as written.
func TestRecomputeGradients(t *testing.T) {
	for name, c := range map[string]gpt.Config{
		"GPT": {Layers: 3, Width: 4, Heads: 2, Seq: 3, Vocab: 5, Dropout: 0.3},
		"Llama": {Layers: 2, Width: 8, Heads: 4, KVHeads: 2, Seq: 3, Vocab: 5, Gated: true, Norm: gpt.RMSNorm,
			Positions: gpt.Rotary, Tied: true, NoBias: true},
		"FP8": {Layers: 2, Width: 4, Heads: 2, Seq: 3, Vocab: 5,
			Matmul: precision.Matmul{Operands: precision.E4M3, Gradients: precision.E5M2}},
	} {
		random := rand.New(rand.NewPCG(31, 32)) // each case has its own, or its weights would be of the map's order
		args := argsOf(c, random, 2)
		run := func(policy recompute.Policy) (bits []uint32) {
			c.Recompute = policy
			for _, v := range flat(asWritten(c, args)) {
				bits = append(bits, math.Float32bits(v))
			}
			return bits
		}
		want := run(recompute.None)
		tried := slices.Clone(policies)
		for range 12 {
			tried = append(tried, randomPlan(random, c.Layers))
		}
		for _, policy := range tried {
			if !slices.Equal(run(policy), want) {
				t.Errorf("%s: %q changes the loss or a gradient", name, policy)
			}
		}
	}
}

// With a plan, the model recomputes the matmuls of the planned operations, and few others.
func TestRecomputedProducts(t *testing.T) {
	random := rand.New(rand.NewPCG(33, 34))
	c := gpt.Config{Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 5, Gated: true}
	tried := append(slices.Clone(policies), recompute.None)
	for range 30 {
		tried = append(tried, randomPlan(random, c.Layers))
	}
	for _, policy := range tried {
		c.Recompute = policy
		plan := must.Value(policy.Plan(c.Layers))
		got, pairs := products(c)
		count := func(recomputed bool, times int) int { // in the forward and the backward pass
			if recomputed {
				times++
			}
			return times
		}
		wantPairs := 0
		for i, set := range plan {
			for name, recomputed := range map[string]bool{
				".qkv.w": set.Has(recompute.QKV), ".o.w": set.Has(recompute.Mid), ".up.w": set.Has(recompute.Up),
				".gate.w": set.Has(recompute.Up), ".down.w": set.Has(recompute.Down) && i < c.Layers-1,
			} {
				if want := count(recomputed, 2); got[gpt.BlockName(i)+name] != want {
					t.Errorf("%q: %d products with %s of block %d, want %d", policy, got[gpt.BlockName(i)+name], name,
						i, want)
				}
			}
			wantPairs += count(set.Has(recompute.Scores), 3) + count(set.Has(recompute.Mix), 3)
		}
		if pairs != wantPairs {
			t.Errorf("%q: %d products of activations in attention, want %d", policy, pairs, wantPairs)
		}
	}
}

// products counts the matmuls that a training step needs: those with each parameter, forward and for the gradient of
// the other operand, and those within attention.
func products(c gpt.Config) (with map[string]int, inAttention int) {
	g := graph.NewGraph(devicetest.WithBarriers(), "")
	defer g.Finalize()
	tree := c.Params()
	var in []*graph.Node
	for _, s := range tree {
		in = append(in, graph.Parameter(g, s.Name, s.Shape))
	}
	tokens := shapes.Make(dtypes.Int32, 2, c.Seq)
	loss := c.Loss(tree.Nodes(in), graph.Parameter(g, "inputs", tokens), graph.Parameter(g, "targets", tokens))
	with, seen := make(map[string]int), make(map[*graph.Node]bool)
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if seen[n] {
			return
		}
		seen[n] = true
		for _, input := range n.Inputs() {
			visit(input)
		}
		if n.Type() != graph.NodeTypeDotGeneral {
			return
		}
		if n.Rank() > 3 {
			inAttention++
		}
		for _, input := range n.Inputs() {
			if input.Type() == graph.NodeTypeParameter {
				with[input.GetParameterName()]++
			}
		}
	}
	for _, gradient := range graph.Gradient(loss, in...) {
		visit(gradient)
	}
	return with, inAttention
}

// On XLA recomputation needs less memory, and results differ by rounding, since operations are fused differently.
// Differences up to 4 units in the last place of a gradient's largest element were measured.
func TestRecomputeOnXLA(t *testing.T) {
	c := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 32, Vocab: 8, Norm: gpt.RMSNorm, NoBias: true, Tied: true}
	testRecomputeOnXLA(t, c, []recompute.Policy{"ops:norm1,norm2,act", recompute.Block})
	c.Flash = true
	testRecomputeOnXLA(t, c, []recompute.Policy{recompute.Block})
}

func testRecomputeOnXLA(t *testing.T, c gpt.Config, tried []recompute.Policy) {
	args := argsOf(c, rand.New(rand.NewPCG(35, 36)), 8)
	run := func(policy recompute.Policy) ([]*tensors.Tensor, int64) {
		c.Recompute = policy
		return onXLA(c, args)
	}
	want, most := run(recompute.None)
	for _, policy := range tried {
		got, temporary := run(policy)
		if temporary >= most {
			t.Errorf("%q needs %d bytes, a policy that recomputes less %d", policy, temporary, most)
		}
		most = temporary
		for k := range want {
			off, largest, is := 0.0, 0.0, flat(got[k:k+1])
			for i, v := range flat(want[k : k+1]) {
				off, largest = max(off, math.Abs(float64(is[i]-v))), max(largest, math.Abs(float64(v)))
			}
			if !(off <= 16*largest*0x1p-23) {
				t.Errorf("%q: result %d has an error of %g, its largest element is %g", policy, k, off, largest)
			}
		}
	}
}

// The loss has the same bits with any codec, since the forward pass is exact; lossless codecs do not change gradients,
// and lossy ones change them only a little. All of it holds with recomputation.
func TestCompress(t *testing.T) {
	for name, c := range map[string]gpt.Config{
		"GELU": {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Dropout: 0.2},
		"SwiGLU": {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Gated: true, Norm: gpt.RMSNorm,
			Positions: gpt.Rotary, NoBias: true},
		"ReLU":         {Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU},
		"gated ReLU":   {Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU, Gated: true},
		"sparse alone": {Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU, CompressReLU: "csr:1"},
	} {
		random := rand.New(rand.NewPCG(41, 42)) // each case has its own, or its weights would be of the map's order
		args := argsOf(c, random, 2)
		run := func(c gpt.Config) []float32 {
			must.Do(t, c.Validate())
			return flat(asWritten(c, args))
		}
		plain := c
		plain.CompressReLU = ""
		want := run(plain)
		last := len(want) - 1
		for _, codec := range []string{"", "dense", "bf16", "int8"} {
			for _, policy := range []recompute.Policy{recompute.None, recompute.Block, "ops:act",
				"ops:norm1,scores,up"} {
				with := c
				with.Compress, with.Recompute = codec, policy
				if c.Activation == gpt.ReLU && codec == "dense" {
					with.CompressReLU = "csr:1"
				}
				got := run(with)
				if math.Float32bits(got[last]) != math.Float32bits(want[last]) {
					t.Errorf("%s, %q, %q: the loss is %v, without codec %v", name, codec, policy, got[last], want[last])
				}
				lossy := codec == "bf16" || codec == "int8"
				if same := slices.Equal(got, want); same == lossy {
					t.Errorf("%s, %q, %q: the gradients are the same: %v", name, codec, policy, same)
				}
				if off := distance(got, want); off > mostOff(c, codec) {
					t.Errorf("%s, %q, %q: the gradients have an error of %v of their norm", name, codec, policy, off)
				}
			}
		}
	}
}

// mostOff bounds the relative error of gradients, for any weights. With 200 seeds the largest measured errors were
// 0.006 with bf16 and 0.026 with int8, which has 1 part in 254 of the largest of a group, and the medians at most
// 0.004. But int8 rounds a small gate to 0, where the gradient of a ReLU jumps: with such gates up to 0.12 was
// measured.
func mostOff(c gpt.Config, codec string) float64 {
	switch {
	case codec != "int8":
		return 0.01
	case c.Gated && c.Activation == gpt.ReLU:
		return 0.15
	}
	return 0.03
}

// CompressReLU is for the output of a ReLU only.
func TestCompressReLU(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 4, Vocab: 7, Activation: gpt.ReLU}
	args := argsOf(c, rand.New(rand.NewPCG(43, 44)), 2)
	plain := asWritten(c, args)
	c.CompressReLU = "e5m2"
	lossy := asWritten(c, args)
	for i, s := range c.Params() {
		same := slices.Equal(tensors.MustCopyFlatData[float32](plain[i]), tensors.MustCopyFlatData[float32](lossy[i]))
		if want := s.Name != "h0.down.w"; same != want {
			t.Errorf("the gradient of %s is the same: %v, want %v", s.Name, same, want)
		}
	}
}

// XLA saves what the codecs say: a bit per element of a ReLU's input, and a byte per element of a matmul's.
func TestCompressSaves(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 32, Heads: 2, Seq: 32, Vocab: 16, Activation: gpt.ReLU}
	const batch = 32
	args := argsOf(c, rand.New(rand.NewPCG(45, 46)), batch)
	temporary := func(codec string) int64 {
		c.Compress = codec
		_, bytes := onXLA(c, args)
		return bytes
	}
	inner := int64(4 * batch * c.Seq * 4 * c.Width) // a float32 for each feature inside the MLP
	plain, mask, bytes := temporary(""), temporary("dense"), temporary("int8")
	if plain-mask < inner*9/10 {
		t.Errorf("a bit in place of a float32 saves %d bytes of %d", plain-mask, inner)
	}
	if bytes >= plain {
		t.Errorf("a byte in place of a float32 needs %d bytes, plain %d", bytes, plain)
	}
}

// distance is the norm of the difference relative to the norm.
func distance(got, want []float32) float64 {
	var off, all float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		off += d * d
		all += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(off / all)
}
