package gpt_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
)

// named returns the parameters of transformers, or with the prefix "grad." their gradients, by the names of
// [gpt.Config.Params]. Buffers have their first values, and no gradient.
func (all arrays) named(t *testing.T, c gpt.Config, prefix string) map[string][]float32 {
	t.Helper()
	taken := 0
	get := func(name string) array {
		a, ok := all[prefix+name]
		if !ok {
			t.Fatalf("no %s%s", prefix, name)
		}
		taken++
		return a
	}
	values := map[string][]float32{"tok": get("model.embed_tokens.weight").data, "lnf.g": get("model.norm.weight").data,
		"head.w": get("lm_head.weight").transposed()}
	for i := range c.Layers {
		of := func(name string) array { return get(fmt.Sprintf("model.layers.%d.%s", i, name)) }
		set := func(name string, data []float32) { values[gpt.BlockName(i)+name] = data }
		set(".ln1.g", of("input_layernorm.weight").data)
		set(".ln2.g", of("post_attention_layernorm.weight").data)
		set(".qkv.w", below(of("self_attn.q_proj.weight"), of("self_attn.k_proj.weight"),
			of("self_attn.v_proj.weight")).transposed())
		set(".o.w", of("self_attn.o_proj.weight").transposed())
		if c.QKNorm {
			set(".qnorm.g", of("self_attn.q_norm.weight").data)
			set(".knorm.g", of("self_attn.k_norm.weight").data)
		}
		if i < c.DenseLayers {
			set(".gate.w", of("mlp.gate_proj.weight").transposed())
			set(".up.w", of("mlp.up_proj.weight").transposed())
			set(".down.w", of("mlp.down_proj.weight").transposed())
			continue
		}
		set(".router.w", of("mlp.gate.weight").transposed())
		both := of("mlp.experts.gate_up_proj")
		set(".experts.gate.w", both.half(0).transposed())
		set(".experts.up.w", both.half(1).transposed())
		set(".experts.down.w", of("mlp.experts.down_proj").transposed())
	}
	if n := (len(all) - 3) / 2; taken != n { // without tokens, logits and the loss
		t.Fatalf("%d of %d parameters are used", taken, n)
	}
	if prefix == "" {
		for _, s := range c.Params() {
			if first, ok := c.Experts.Initial(s.Name); ok {
				values[s.Name] = slices.Repeat([]float32{first}, s.Size())
			}
		}
	}
	return values
}

// inputs returns a model's parameters, its tokens and their targets.
func (all arrays) inputs(t *testing.T, c gpt.Config) (parameters []*tensors.Tensor, tokens, targets *tensors.Tensor) {
	t.Helper()
	values := all.named(t, c, "")
	for _, s := range c.Params() {
		parameters = append(parameters, tensors.FromFlatDataAndDimensions(values[s.Name], s.Shape.Dimensions...))
	}
	a := all["tokens"]
	var before, after [][]int32
	for row := range slices.Chunk(a.data, a.columns) {
		var whole []int32
		for _, x := range row {
			whole = append(whole, int32(x))
		}
		before, after = append(before, whole[:len(whole)-1]), append(after, whole[1:])
	}
	return parameters, tensors.FromValue(before), tensors.FromValue(after)
}

// outputs are the logits, the loss and the gradients by their names.
type outputs map[string][]float32

func (all arrays) outputs(t *testing.T, c gpt.Config) outputs {
	t.Helper()
	want := outputs(all.named(t, c, "grad."))
	want["logits"], want["loss"] = all["logits"].data, all["loss"].data
	return want
}

// apart returns the largest difference of two outputs, divided by the largest number of those wanted that it is in.
// Not all of what is wanted needs to be there.
func (o outputs) apart(t *testing.T, want outputs) (worst float64, where string) {
	t.Helper()
	for name, got := range o {
		if len(got) != len(want[name]) {
			t.Fatalf("%s has %d numbers, want %d", name, len(got), len(want[name]))
		}
		var off, largest float64
		for i, x := range got {
			y := float64(want[name][i])
			off, largest = max(off, math.Abs(float64(x)-y)), max(largest, math.Abs(y))
		}
		if off /= largest; !(off <= worst) {
			where = name
		}
		worst = max(worst, off) // NaN if one is
	}
	return worst, where
}

// onOne computes a model's outputs on one device.
func onOne(t *testing.T, c gpt.Config, all arrays) outputs {
	t.Helper()
	parameters, tokens, targets := all.inputs(t, c)
	tree := c.Params()
	out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		n := len(tree)
		p := tree.Nodes(in[:n])
		loss := c.Loss(p, in[n], in[n+1])
		return append([]*graph.Node{c.Forward(p, in[n]), loss}, graph.Gradient(loss, in[:n]...)...)
	}, append(parameters, tokens, targets)...))(t)
	got := outputs{}
	for i, name := range append([]string{"logits", "loss"}, tree.Names()...) {
		if _, buffer := c.Experts.Initial(name); !buffer {
			got[name] = tensors.MustCopyFlatData[float32](out[i])
		}
	}
	return got
}

// given is a model that starts with other parameters.
type given struct {
	gpt.Parallel
	parameters []*tensors.Tensor
}

func (m given) Init() ([]*tensors.Tensor, error) { return m.parameters, nil }

func (m given) Chain() (chain.Model, error) {
	c, err := m.Parallel.Chain()
	c.Initial = m.Init
	return c, err
}

// onSeveral computes the loss and the gradients by one step of training in a layout: what it subtracts from the
// parameters. The rate is such that their rounding matters less than that of the gradients.
func onSeveral(t *testing.T, c gpt.Config, all arrays, l parallel.Layout) outputs {
	t.Helper()
	const rate = 256
	parameters, tokens, targets := all.inputs(t, c)
	model := gpt.Parallel{Config: c, Tensor: l.TensorGroup(), Experts: l.Experts()}
	run := must.Get(parallel.New(t.Context(), devicetest.Open(t, 4),
		train.Recipe{Model: given{model, parameters}, Optimizer: optim.SGD(rate)}, l, parallel.Options{}))(t)
	metrics := must.Get(run.Step(t.Context(), tokens, targets))(t)
	after := must.Get(run.Params(t.Context()))(t)
	must.Do(t, run.Close())
	got := outputs{"loss": {float32(metrics.Loss)}}
	before := all.named(t, c, "")
	for _, s := range c.Params() {
		if _, buffer := c.Experts.Initial(s.Name); buffer {
			continue
		}
		got[s.Name] = tensors.MustCopyFlatData[float32](after.Get(s.Name))
		for i, x := range got[s.Name] {
			got[s.Name][i] = (before[s.Name][i] - x) / rate
		}
	}
	return got
}

// TestTransformers compares models with experts with those of Hugging Face's transformers: logits on one device, the
// loss and the gradient by each parameter on one device and on four. Both round in float32, some hundred times.
func TestTransformers(t *testing.T) {
	const bound = 1e-4
	systest.FullOnly(t, "the comparison with transformers, which installs PyTorch (2 GB to download)")
	mixtral := gpt.Config{Layers: 2, Width: 32, Heads: 4, KVHeads: 2, Hidden: 48, Seq: 12, Vocab: 64, Gated: true,
		NoBias: true, Norm: gpt.RMSNorm, Positions: gpt.Rotary,
		Experts: expert.Config{Experts: 4, PerToken: 2, Hidden: 48, Normalize: true}}
	qwen := mixtral
	qwen.QKNorm, qwen.Experts.Experts, qwen.Experts.Hidden = true, 8, 24
	dense := qwen
	dense.DenseLayers, dense.Experts.Normalize = 1, false
	models := theirs(t)
	for _, test := range []struct {
		name string
		c    gpt.Config
	}{{"mixtral", mixtral}, {"qwen3", qwen}, {"qwen3-dense", dense}} {
		all, want := models[test.name], models[test.name].outputs(t, test.c)
		check := func(where string, got outputs) {
			off, of := got.apart(t, want)
			t.Logf("%s %s: at most %.2g apart, in %s", test.name, where, off, of)
			if !(off <= bound) {
				t.Errorf("more than %g", bound)
			}
		}
		check("on one device", onOne(t, test.c, all))
		for _, l := range []parallel.Layout{{Data: 4, Expert: 4}, {Data: 2, Expert: 2, Tensor: 2}} {
			check(l.String(), onSeveral(t, test.c, all, l))
		}
	}
	// What is computed otherwise is far apart.
	normalized, one, plain := dense, mixtral, mixtral
	normalized.Experts.Normalize, one.Experts.PerToken, plain.Experts.Normalize = true, 1, false
	for _, wrong := range []struct {
		name, model string
		c           gpt.Config
	}{
		{"weights that are normalized", "qwen3-dense", normalized},
		{"weights that are not", "mixtral", plain},
		{"one expert for each token", "mixtral", one},
	} {
		off, _ := onOne(t, wrong.c, models[wrong.model]).apart(t, models[wrong.model].outputs(t, wrong.c))
		if !(off > 100*bound) {
			t.Errorf("%s: only %.2g apart", wrong.name, off)
		}
	}
}
