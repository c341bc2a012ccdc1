package cost

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
)

func TestModelValidate(t *testing.T) {
	good := Model{Layers: 2, Width: 12, Heads: 4, Vocab: 256, Context: 8}
	for _, c := range []struct {
		change func(*Model)
		want   string
	}{
		{func(m *Model) {}, ""},
		{func(m *Model) { *m = Model{} }, "Layers is 0: set it to at least 1"},
		{func(m *Model) { m.Layers = 1 << 15 }, "Layers is 32768: set it to at most 16384"},
		{func(m *Model) { m.Width = -1 }, "Width is -1: set it to at least 1"},
		{func(m *Model) { m.Width = math.MaxInt }, "Width is 9223372036854775807: set it to at most 1048576"},
		{func(m *Model) { m.Heads = 0 }, "Heads is 0: set it to at least 1"},
		{func(m *Model) { m.Heads = 5 },
			"Heads is 5, which does not divide the width 12: choose a divisor, or set the width of a head"},
		{func(m *Model) { m.Heads, m.HeadWidth = 5, 3 }, ""},
		{func(m *Model) { m.HeadWidth = -3 }, "HeadWidth is -3: set it to at least 0"},
		{func(m *Model) { m.HeadWidth = 1 << 20 }, ""},
		{func(m *Model) { m.Heads, m.HeadWidth = 8, 1<<20 },
			"HeadWidth is 1048576, which with 8 heads is 8388608 in total: choose at most 4194304 in total"},
		{func(m *Model) { m.KVHeads = 2 }, ""},
		{func(m *Model) { m.KVHeads = 3 }, "KVHeads is 3, which does not divide the 4 heads: choose a divisor"},
		{func(m *Model) { m.KVHeads = 8 }, "KVHeads is 8, which does not divide the 4 heads: choose a divisor"},
		{func(m *Model) { m.KVHeads = -2 }, "KVHeads is -2: set it to at least 0"},
		{func(m *Model) { m.Hidden = -1 }, "Hidden is -1: set it to at least 0"},
		{func(m *Model) { m.Hidden = 1 << 23 }, "Hidden is 8388608: set it to at most 4194304"},
		{func(m *Model) { m.Vocab = 1 }, "Vocab is 1: set it to at least 2"},
		{func(m *Model) { m.Context = 0 }, "Context is 0: set it to at least 1"},
		{func(m *Model) { m.PositionRows = -1 }, "PositionRows is -1: set it to at least 0"},
		{func(m *Model) { m.Activation = "tanh" }, `Activation is "tanh": set it to gelu, silu or relu`},
		{func(m *Model) { m.QKNorm = "tail" }, `QKNorm is "tail": set it to head or all, or leave it empty`},
		{func(m *Model) { m.RopeWidth = 2 }, "RopeWidth is 2, which only latent attention has: set KVRank, or this to 0"},
		{func(m *Model) { m.KVRank, m.RopeWidth, m.ValueWidth = 5, 2, 4 }, ""},
		{func(m *Model) { m.KVRank, m.RopeWidth = 5, 3 }, "RopeWidth is 3: set it to less than the width of a head, 3"},
		{func(m *Model) { m.KVRank, m.KVHeads = 5, 2 },
			"KVHeads is 2, but latent attention has as many as its 4 heads: set it to 0"},
		{func(m *Model) { m.KVRank, m.ValueWidth = 5, 1<<20; m.Heads, m.HeadWidth = 8, 2 },
			"ValueWidth is 1048576, which with 8 heads is 8388608 in total: choose at most 4194304 in total"},
		{func(m *Model) { m.KVRank, m.QKVBias = 5, true },
			"QKVBias is true, which latent attention does not have: set it to false"},
		{func(m *Model) { m.KVRank, m.QKNorm = 5, "all" },
			`QKNorm is "all", which latent attention does not have: leave it empty`},
		{func(m *Model) { m.Experts, m.ExpertsPerToken = 4, 2 }, ""},
		{func(m *Model) { m.Experts = 4 }, "ExpertsPerToken is 0: set it to at least 1 and at most the 4 experts"},
		{func(m *Model) { m.Experts, m.ExpertsPerToken = 4, 5 },
			"ExpertsPerToken is 5: set it to at least 1 and at most the 4 experts"},
		{func(m *Model) { m.ExpertsPerToken = 2 },
			"ExpertsPerToken is 2 without experts: set Experts, or this to 0"},
		{func(m *Model) { m.DenseLayers = 1 }, "DenseLayers is 1 without experts: set Experts, or this to 0"},
		{func(m *Model) { m.RouterBias = true }, "RouterBias is true without experts: set Experts, or this to false"},
		{func(m *Model) { m.Experts, m.ExpertsPerToken, m.NoExpertBias = 4, 2, true },
			"NoExpertBias is true without experts or MLPBias: set both, or this to false"},
		{func(m *Model) { m.Experts, m.ExpertsPerToken, m.DenseLayers = 4, 2, 2 },
			"DenseLayers is 2 of 2 layers: leave at least one with experts"},
		{func(m *Model) { m.Experts, m.ExpertsPerToken, m.ExpertHidden = 4, 2, 1<<21 },
			"ExpertHidden is 2097152, which with 4 experts is 8388608 in total: choose at most 4194304 in total"},
	} {
		m := good
		c.change(&m)
		if c.want != "" {
			c.want = "cost: Model." + c.want
		}
		check(t, m.Validate(), c.want)
	}
}

// The methods of an invalid model do not panic.
func TestInvalidModel(t *testing.T) {
	for _, m := range []Model{{}, {Layers: -1, Width: -5, Heads: 0},
		{Layers: math.MinInt, Width: math.MaxInt, Heads: -1, Vocab: math.MinInt}} {
		_, _, _ = m.Params().Block(), m.Params().Total(), m.TokenFLOPs(-1)
		if _, err := m.FLOPs(Step{Sequences: 1}); err == nil {
			t.Errorf("%+v: FLOPs is no error", m)
		}
	}
}

// With all upper limits at once, 16 bytes for each parameter do not overflow an int64.
func TestLimits(t *testing.T) {
	m := Model{Layers: 1 << 14, Width: 1 << 20, Heads: 1 << 20, HeadWidth: 4, Hidden: 1 << 22, Vocab: 1 << 24,
		Context: 1 << 28, PositionRows: 1 << 28, Gated: true, QKVBias: true, OutBias: true, MLPBias: true,
		NormBias: true, QKNorm: "all", Sinks: true}
	latent := m
	latent.QKVBias, latent.QKNorm = false, ""
	latent.KVRank, latent.QueryRank, latent.RopeWidth, latent.ValueWidth = 1<<20, 1<<20, 3, 4
	experts := latent
	experts.Hidden = 0
	experts.Experts, experts.ExpertsPerToken, experts.ExpertHidden, experts.RouterBias = 1<<16, 1<<16, 1<<6, true
	for _, m := range []Model{m, latent, experts} {
		must.Do(t, m.Validate())
		total := new(big.Int)
		for _, tensor := range m.Tensors() {
			size := big.NewInt(int64(tensor.Count))
			for _, d := range tensor.Dims {
				size.Mul(size, big.NewInt(int64(d)))
			}
			total.Add(total, size)
		}
		if got := m.Params().Total(); big.NewInt(got).Cmp(total) != 0 {
			t.Errorf("%d parameters, want %d", got, total)
		}
		if bytes := total.Mul(total, big.NewInt(16)); !bytes.IsInt64() {
			t.Errorf("16 bytes a parameter are %d, which overflows", bytes)
		}
		work, err := m.FLOPs(Step{Sequences: math.MaxInt})
		if err != nil || math.IsInf(work.Model(), 0) {
			t.Errorf("%v operations, %v", work.Model(), err)
		}
	}
}

// FromGPT lists the parameters of lib/gpt by name.
func TestFromGPT(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		kv := 1 + random.IntN(3)
		heads := kv * (1 + random.IntN(3))
		c := gpt.Config{Layers: 1 + random.IntN(3), Width: heads * 2 * (1 + random.IntN(3)), Heads: heads,
			Seq: 1 + random.IntN(9), Vocab: 2 + random.IntN(20), KVHeads: kv, Hidden: random.IntN(20),
			Gated: flip(random), Tied: flip(random), NoBias: flip(random)}
		if flip(random) {
			c.Norm = gpt.RMSNorm
		}
		if flip(random) {
			c.Positions = gpt.Rotary
		}
		c.QKNorm = flip(random)
		if flip(random) {
			n := 1 + random.IntN(5)
			c.Experts = expert.Config{Experts: n, PerToken: 1 + random.IntN(n), Hidden: 1 + random.IntN(9)}
			if c.SharedExperts, c.DenseLayers = random.IntN(3), random.IntN(c.Layers); flip(random) {
				c.Experts.Router, c.Experts.Capacity = expert.Sigmoid, 1
			}
		}
		m := FromGPT(c)
		must.Do(t, m.Validate())
		tensors := m.Tensors()
		tree := slices.DeleteFunc(c.Params(), func(s params.Spec) bool { // the loads of experts
			return strings.HasSuffix(s.Name, ".load") || strings.HasSuffix(s.Name, ".kept")
		})
		for _, spec := range tree {
			name := spec.Name
			if block, rest, ok := strings.Cut(name, "."); ok && block[0] == 'h' && block != "head" {
				name = "h." + rest
			}
			i := slices.IndexFunc(tensors, func(tensor Tensor) bool { return tensor.Name == name })
			if i < 0 || !slices.Equal(tensors[i].Dims, spec.Shape.Dimensions) || tensors[i].Count == 0 {
				t.Fatalf("%+v: %s is not among %v", c, spec, tensors)
			}
			tensors[i].Count--
		}
		for _, tensor := range tensors {
			if tensor.Count != 0 {
				t.Fatalf("%+v has %d times less of %+v", c, tensor.Count, tensor)
			}
		}
		if got, want := m.Params().Total(), int64(tree.Size()); got != want {
			t.Fatalf("%+v: %d parameters, want %d", c, got, want)
		}
	}
}
