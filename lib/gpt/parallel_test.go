package gpt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

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
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: error %v does not say %q", name, err, c.says)
		}
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
		shards, err := m.Shards(sizes(map[string]int{"t": 4}))
		if err != nil {
			t.Fatal(err)
		}
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
