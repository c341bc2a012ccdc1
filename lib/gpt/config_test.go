package gpt_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
)

func TestConfigValidate(t *testing.T) {
	good := gpt.Config{Layers: 2, Width: 12, Heads: 3, Seq: 8, Vocab: 256}
	change := func(f func(*gpt.Config)) gpt.Config { c := good; f(&c); return c }
	for _, c := range []struct {
		config gpt.Config
		want   string // the error; "" for none
	}{
		{good, ""},
		{gpt.ReferenceConfig(), ""},
		{gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: 1, Vocab: 2}, ""},
		{gpt.Config{}, "gpt: Config.Layers is 0: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Layers = -3 }), "gpt: Config.Layers is -3: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Width = 0 }), "gpt: Config.Width is 0: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Heads = 0 }), "gpt: Config.Heads is 0: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Seq = 0 }), "gpt: Config.Seq is 0: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Vocab = 1 }), "gpt: Config.Vocab is 1: set it to at least 2"},
		{change(func(c *gpt.Config) { c.Heads = 5 }),
			"gpt: Config.Heads is 5, which does not divide Config.Width 12: choose a divisor, such as 4"},
		{change(func(c *gpt.Config) { c.Heads = 24 }),
			"gpt: Config.Heads is 24, which does not divide Config.Width 12: choose a divisor, such as 12"},
		{change(func(c *gpt.Config) { c.KVHeads = 1 }), ""},
		{change(func(c *gpt.Config) { c.Positions, c.Norm, c.Hidden = gpt.Rotary, gpt.RMSNorm, 5 }), ""},
		{change(func(c *gpt.Config) { c.KVHeads = 2 }),
			"gpt: Config.KVHeads is 2, which does not divide Config.Heads 3: choose a divisor, such as 1"},
		{change(func(c *gpt.Config) { c.KVHeads = -1 }),
			"gpt: Config.KVHeads is -1, which does not divide Config.Heads 3: choose a divisor, such as 1"},
		{change(func(c *gpt.Config) { c.KVHeads = 6 }),
			"gpt: Config.KVHeads is 6, which does not divide Config.Heads 3: choose a divisor, such as 3"},
		{change(func(c *gpt.Config) { c.Hidden = -8 }), "gpt: Config.Hidden is -8: set it to at least 1"},
		{change(func(c *gpt.Config) { c.Layers = 1 << 40 }),
			"gpt: Config.Layers is 1099511627776: set it to at most 16384"},
		{change(func(c *gpt.Config) { c.Width, c.Heads = math.MaxInt, math.MaxInt/2 }),
			"gpt: Config.Width is 9223372036854775807: set it to at most 1048576"},
		{change(func(c *gpt.Config) { c.Norm = "batch" }),
			`gpt: Config.Norm is "batch": set it to "layernorm" or "rmsnorm"`},
		{change(func(c *gpt.Config) { c.Positions = "alibi" }),
			`gpt: Config.Positions is "alibi": set it to "learned" or "rotary"`},
		{change(func(c *gpt.Config) { c.Positions, c.Heads = gpt.Rotary, 4 }),
			`gpt: Config.Positions is "rotary" and Width/Heads is 3: rotary positions rotate pairs of features, ` +
				"so make it even"},
		{change(func(c *gpt.Config) { c.Dropout = 1 }), "gpt: Config.Dropout is 1: set it to at least 0 and less " +
			"than 1"},
		{change(func(c *gpt.Config) { c.Flash, c.Dropout = true, 0.1 }),
			"gpt: Config.Dropout is 0.1 with Config.Flash, which does not support dropout of attention weights: " +
				"unset one of the two"},
		{change(func(c *gpt.Config) { c.Dropout = math.NaN() }),
			"gpt: Config.Dropout is NaN: set it to at least 0 and less than 1"},
	} {
		err := c.config.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%+v: error %v, want %q", c.config, err, c.want)
		}
		if _, err := c.config.Init(); (err != nil) != (c.want != "") {
			t.Errorf("%+v: Init has error %v", c.config, err)
		}
	}
}

// The sizes of published models, with the parameters of their authors' checkpoints.
func TestPublishedSizes(t *testing.T) {
	for _, c := range []struct {
		name   string
		config gpt.Config
		want   int
	}{
		// huggingface.co/openai-community/gpt2: 124 439 808 parameters.
		{"GPT-2", gpt.Config{Layers: 12, Width: 768, Heads: 12, Seq: 1024, Vocab: 50257, Tied: true}, 124439808},
		// huggingface.co/meta-llama/Llama-2-7b-hf: 6 738 415 616 parameters.
		{"Llama 2 7B", gpt.Config{Layers: 32, Width: 4096, Heads: 32, Seq: 4096, Vocab: 32000, Hidden: 11008,
			Gated: true, Norm: gpt.RMSNorm, Positions: gpt.Rotary, NoBias: true}, 6738415616},
		// huggingface.co/meta-llama/Meta-Llama-3-8B: 8 030 261 248 parameters.
		{"Llama 3 8B", gpt.Config{Layers: 32, Width: 4096, Heads: 32, Seq: 8192, Vocab: 128256, Hidden: 14336,
			KVHeads: 8, Gated: true, Norm: gpt.RMSNorm, Positions: gpt.Rotary, NoBias: true}, 8030261248},
	} {
		if err := c.config.Validate(); err != nil {
			t.Error(err)
		}
		if got := c.config.Params().Size(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", c.name, got, c.want)
		}
	}
}

func TestInit(t *testing.T) {
	c := gpt.ReferenceConfig()
	w := must.Value(c.Init())
	tree := c.Params()
	want := plainInit(tree)
	for k, s := range tree {
		for i, got := range tensors.MustCopyFlatData[float32](w[k]) {
			if float64(got) != want[s.Name][i] {
				t.Fatalf("element %d of %s: %g, want %g", i, s, got, want[s.Name][i])
			}
		}
	}
	// Single values computed with Python from the definition: tensor, element, value.
	for _, v := range []struct {
		tensor, element int
		want            float32
	}{
		{0, 0, 0.026556551456451416}, {0, 1, 0.0046115173026919365},
		{1, 0, 0.018449926748871803}, {4, 12345, -0.022518303245306015},
	} {
		if got := tensors.MustCopyFlatData[float32](w[v.tensor])[v.element]; got != v.want {
			t.Errorf("tensor %d, element %d: %.17g, want %.17g", v.tensor, v.element, got, v.want)
		}
	}
}

// plainInit returns the reference model's initial weights.
func plainInit(tree params.Tree) map[string][]float64 {
	p := make(map[string][]float64)
	for t, s := range tree {
		w := make([]float64, s.Size())
		for i := range w {
			switch s.Name[len(s.Name)-2:] {
			case ".g":
				w[i] = 1
			case ".b":
			default:
				z := uint64(t)*(1<<32) + uint64(i) + 0x9E3779B97F4A7C15
				z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
				z = (z ^ (z >> 27)) * 0x94D049BB133111EB
				z ^= z >> 31
				w[i] = float64(float32((2*float64(z>>40)/16777216 - 1) * 0.02 * math.Sqrt(3)))
			}
		}
		p[s.Name] = w
	}
	return p
}

// sizes are those of a mesh's axes.
func sizes(of map[string]int) func(axis string) (int, error) {
	return func(axis string) (int, error) {
		if n, ok := of[axis]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("no axis %q", axis)
	}
}

// What cannot be split is an error that names the parameter or the field.
func TestParallelRefused(t *testing.T) {
	good := gpt.Config{Layers: 2, Width: 24, Heads: 12, Seq: 24, Vocab: 10}
	layers := tensor.Group{Axis: "t"}
	tokens := tensor.Group{Axis: "t", Sequence: true}
	for name, c := range map[string]struct {
		change   func(c *gpt.Config)
		tensor   tensor.Group
		sequence sequence.Group
		mesh     map[string]int
		says     string // "" is no error
	}{
		"all fits": {tensor: tokens, sequence: sequence.Group{Ring: "r"},
			mesh: map[string]int{"t": 4, "r": 2}},
		"no such axis": {tensor: layers, mesh: map[string]int{"r": 4}, says: `no axis "t"`},
		"no ring":      {sequence: sequence.Group{Ring: "r"}, mesh: map[string]int{"t": 4}, says: `no axis "r"`},
		"heads":        {tensor: layers, mesh: map[string]int{"t": 8}, says: "parameter h0.qkv.w "},
		"key heads": {func(c *gpt.Config) { c.KVHeads = 6 }, layers, sequence.Group{}, map[string]int{"t": 4},
			"parameter h0.qkv.w "},
		"fewer key heads": {func(c *gpt.Config) { c.KVHeads = 2 }, layers, sequence.Group{}, map[string]int{"t": 4},
			""},
		"MLP": {func(c *gpt.Config) { c.Hidden = 26 }, layers, sequence.Group{}, map[string]int{"t": 4},
			"parameter h0.up.w "},
		"tokens": {func(c *gpt.Config) { c.Seq = 22 }, tokens, sequence.Group{}, map[string]int{"t": 4},
			"Config.Seq is 22"},
		"tokens of a ring's": {nil, tokens, sequence.Group{Ring: "r"}, map[string]int{"t": 4, "r": 4},
			"Config.Seq is 24"},
		"heads of Ulysses": {nil, layers, sequence.Group{Ulysses: "u"}, map[string]int{"t": 4, "u": 2}, "Ulysses"},
		"key heads of Ulysses": {func(c *gpt.Config) { c.KVHeads = 3 }, tensor.Group{}, sequence.Group{Ulysses: "u"},
			map[string]int{"u": 2}, "Ulysses"},
		"dropout": {func(c *gpt.Config) { c.Dropout = 0.1 }, layers, sequence.Group{Ring: "r"},
			map[string]int{"t": 2, "r": 2}, "Config.Dropout is 0.1"},
		"dropout alone": {func(c *gpt.Config) { c.Dropout = 0.1 }, tokens, sequence.Group{}, map[string]int{"t": 2},
			""},
		"products": {func(c *gpt.Config) { c.Matmul.Operands = precision.BF16 }, layers,
			sequence.Group{Ring: "r"}, map[string]int{"t": 2, "r": 2}, "Config.Matmul"},
		"one axis twice": {nil, layers, sequence.Group{Ring: "r", Ulysses: "r"}, map[string]int{"t": 2, "r": 2},
			"two axes"},
		"layers' and ring": {nil, layers, sequence.Group{Ring: "t"}, map[string]int{"t": 2}, `axis "t"`},
		"no configuration": {func(c *gpt.Config) { c.Layers = 0 }, layers, sequence.Group{}, map[string]int{"t": 2},
			"Config.Layers"},
	} {
		config := good
		if c.change != nil {
			c.change(&config)
		}
		_, err := gpt.Parallel{Config: config, Tensor: c.tensor, Sequence: c.sequence}.Shards(sizes(c.mesh))
		refused(t, name, err, c.says)
	}
}

// All matrices are cut, and a device has the n-th part of a model except for replicated parameters, padding and copies.
func TestParallelShares(t *testing.T) {
	for name, c := range map[string]struct {
		config gpt.Config
		whole  []string // the ends of the names of replicated parameters
		bytes  int      // of four devices', in all, beyond those of the model
	}{
		"GPT": {gpt.Config{Layers: 2, Width: 8, Heads: 4, Seq: 6, Vocab: 10},
			[]string{"pos", ".ln1.g", ".ln1.b", ".ln2.g", ".ln2.b", ".o.b", ".down.b", "lnf.g", "lnf.b"},
			4 * (3*(6*8+2*(6*8)+2*8) + 2*2*8)}, // thrice what is whole, and two rows of padding in each table
		"Llama": {gpt.Config{Layers: 2, Width: 8, Heads: 4, KVHeads: 2, Seq: 6, Vocab: 12, Gated: true,
			Norm:      gpt.RMSNorm,
			Positions: gpt.Rotary, Tied: true, NoBias: true},
			[]string{".ln1.g", ".ln2.g", "lnf.g"},
			4 * (3*(2*(2*8)+8) + 2*(2*2*2*8))}, // and each key head, and head of values, two wide, twice
	} {
		m := gpt.Parallel{Config: c.config, Tensor: tensor.Group{Axis: "t"}}
		shards := must.Value(m.Shards(sizes(map[string]int{"t": 4})))
		tree := m.Params()
		local := slices.Clone(tree)
		for i, s := range tree {
			cut := shards.Cuts[i]
			if err := cut.Validate(s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			local[i].Shape = cut.Part(s.Shape)
			if whole := slices.ContainsFunc(c.whole, func(end string) bool {
				return strings.HasSuffix(s.Name, end)
			}); whole != (cut == nil) {
				t.Errorf("%s: %v is whole: %v, want %v", name, s, cut == nil, whole)
			}
		}
		if got := 4*int(params.Tree(local).Bytes()) - int(tree.Bytes()); got != c.bytes {
			t.Errorf("%s: four devices have %d bytes more than the model, want %d", name, got, c.bytes)
		}
	}
}

// trained is what lib/train and lib/chain look for by type assertion: they would pass over a method of another name.
type trained interface {
	train.Noisy
	train.Checker
	train.Multiplier
	Chain() (chain.Model, error)
}

var (
	_ trained      = gpt.Config{}
	_ trained      = gpt.Parallel{}
	_ train.Shared = gpt.Parallel{}
)
