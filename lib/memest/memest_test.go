package memest

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

func mixed(t testing.TB) precision.Policy {
	t.Helper()
	p := must.Get(precision.ParsePolicy("bf16"))(t)
	return p
}

func preset(t testing.TB, name string) cost.Model {
	t.Helper()
	m := must.Get(cost.Preset(name))(t)
	return m
}

func estimate(t testing.TB, s Setup) Ledger {
	t.Helper()
	l := must.Get(Estimate(s))(t)
	return l
}

// randomModel varies every field that changes a tensor's shape.
func randomModel(r *rand.Rand) cost.Model {
	bit := func() bool { return r.IntN(2) == 0 }
	m := cost.Model{Layers: 1 + r.IntN(6), Heads: 8, Width: 8 * (1 + r.IntN(8)), Vocab: 2 + r.IntN(300), Context: 64,
		Gated: bit(), Tied: bit(),
		QKVBias: bit(), OutBias: bit(), MLPBias: bit(), NormBias: bit(), Hidden: 8 * (1 + r.IntN(20)),
		KVHeads: 1 << r.IntN(4)}
	if bit() {
		m.PositionRows = 64
	}
	if bit() {
		m.HeadWidth = 1 + r.IntN(20)
	}
	m.Sinks, m.QKNorm = bit(), []string{"", "head", "all"}[r.IntN(3)]
	if bit() {
		m.KVHeads, m.HeadWidth, m.QKVBias, m.QKNorm = 0, 2+r.IntN(20), false, ""
		m.KVRank, m.QueryRank, m.RopeWidth, m.ValueWidth = 1+r.IntN(9), r.IntN(9), r.IntN(m.HeadWidth), r.IntN(20)
	}
	if bit() {
		m.Experts, m.ExpertHidden, m.SharedExperts = 32*(1+r.IntN(3)), 8*(1+r.IntN(9)), r.IntN(3)
		m.ExpertsPerToken, m.DenseLayers, m.RouterBias = 1+r.IntN(4), r.IntN(m.Layers), bit()
	}
	return m
}

// The formulas of the shards' elements are the products of their dimensions; unsharded, they add up to the model.
func TestShardFormulas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		s := Setup{Model: randomModel(r), Parallelism: Parallelism{Tensor: 1 << r.IntN(4)}}.withDefaults()
		if s.Model.Experts > 0 {
			s.Parallelism.Expert = 1 << r.IntN(3)
			s.Parallelism.Data = s.Parallelism.Expert
		}
		m := s.Model
		var total int64
		for _, tensor := range s.local(device{0, m.Layers, m.Layers - m.ExpertLayers(), true, true}) {
			n := must.Get(s.vars().compute(tensor.elements))(t)
			if n.bytes != tensor.Size() {
				t.Fatalf("%s of %+v over %d devices: the formula %s gives %d, the dimensions are %v", tensor.Name,
					s.Model, s.Parallelism.Tensor, tensor.elements, n.bytes, tensor.Dims)
			}
			total += n.bytes * int64(tensor.Count)
		}
		p := m.Params()
		if want := p.Total() - p.Experts + p.Experts/int64(s.Parallelism.Expert); s.Parallelism.Tensor == 1 &&
			total != want {
			t.Fatalf("%+v: the tensors have %d elements, want %d", m, total, want)
		}
	}
}

// Of every optimizer, the ledger has the states that it declares itself for all parameters.
func TestOptimizerStates(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, name := range optim.Names() {
		optimizer := must.Get(optim.Parse(name, 1e-3))(t)
		for range 20 {
			s := Setup{Model: randomModel(r), Optimizer: optimizer}
			var tree params.Tree
			for _, tensor := range s.Model.Tensors() {
				for i := range tensor.Count {
					tree = append(tree, params.New(strings.Repeat("i", i+1)+tensor.Name, 13, tensor.Dims...))
				}
			}
			tree = tree.As(s.withDefaults().Precision.Params)
			want := optim.States(optimizer, tree).Bytes()
			if got := estimate(t, s).Stages[0].Of(Optimizer); got != want {
				t.Fatalf("%s for %+v: %d bytes, want %d", name, s.Model, got, want)
			}
		}
	}
}

// Rajbhandari et al. 2020, figure 1 and §5: 7.5 billion parameters, 64 ranks, Adam in mixed precision.
func TestStatesUnderZeRO(t *testing.T) {
	for stage, want := range []int64{120e9, 30e9 + 90e9/64, 15e9 + 105e9/64, 120e9 / 64} {
		l := must.Get(OfParameters(7.5e9, Setup{Precision: mixed(t),
			Parallelism: Parallelism{Data: 64, ZeRO: stage}}))(t)
		if got := l.BytesPerDevice(); got != want {
			t.Errorf("stage %d: %d bytes, want %d", stage, got, want)
		}
	}
}

// For random models, no technique that saves memory needs more, and all ranks together have at least the full model.
func TestSavingsSave(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		s := Setup{Model: randomModel(r), Batch: 1 + r.IntN(4), Precision: mixed(t),
			Parallelism: Parallelism{Data: 1 + r.IntN(9), Tensor: 1 << r.IntN(4)}}
		last := int64(math.MaxInt64)
		for stage := range 4 {
			s.Parallelism.ZeRO = stage
			st := estimate(t, s).Stages[0]
			states := st.Of(Parameters) + st.Of(Master) + st.Of(Gradients) + st.Of(Optimizer)
			if states > last {
				t.Fatalf("%+v: ZeRO stage %d needs %d bytes, the stage before %d", s, stage, states, last)
			}
			last = states
		}
		if all := last * int64(s.Parallelism.Data*s.Parallelism.Tensor); all < 16*s.Model.Params().Total() {
			t.Fatalf("%+v: all shards together are %d bytes, the model's states %d", s, all,
				16*s.Model.Params().Total())
		}
		s.Model.Layers += 3 // recomputing the only block takes more than it saves
		before := estimate(t, s).Stages[0]
		for what, change := range map[string]func(*Setup){
			"selective recomputation": func(s *Setup) { s.Recompute = recompute.Selective },
			"recomputation":           func(s *Setup) { s.Recompute = recompute.Block },
			"flash attention":         func(s *Setup) { s.Flash = true },
			"offloaded activations":   func(s *Setup) { s.OffloadActivations = true },
			"offloaded states":        func(s *Setup) { s.OffloadOptimizer = true },
		} {
			changed := s
			change(&changed)
			if after := estimate(t, changed).Stages[0]; after.Bytes() > before.Bytes() {
				t.Fatalf("%+v: %s makes %d bytes %d", s, what, before.Bytes(), after.Bytes())
			}
		}
	}
}

// ZB-V's first device has both the embedding and the head (Qi et al. 2023, §6). DualPipe's devices have two stages
// each.
func TestPipelinesWithTwoStagesPerDevice(t *testing.T) {
	m := preset(t, "Llama 3 8B")
	parameters := func(schedule Schedule) (all []int64) {
		for _, st := range estimate(t, Setup{Model: m, Microbatches: 8,
			Parallelism: Parallelism{Pipeline: 4, Schedule: schedule}}).Stages {
			all = append(all, st.Of(Parameters)/4)
		}
		return all
	}
	block, table := m.Params().Block(), m.Params().Embeddings
	want := map[Schedule][]int64{
		OneFOneB: {8*block + table, 8 * block, 8 * block, 8*block + table + 4096},
		ZBV:      {8*block + 2*table + 4096, 8 * block, 8 * block, 8 * block},
		DualPipe: {16*block + 2*table + 4096, 16 * block, 16 * block, 16*block + 2*table + 4096},
	}
	for schedule, want := range want {
		if got := parameters(schedule); !slices.Equal(got, want) {
			t.Errorf("%s: the devices have %v parameters, want %v", schedule, got, want)
		}
	}
}

// Korthikanti et al. 2022, §4.2.3: with 1F1B the first stage saves as many activations as the full model for one
// micro-batch, for any number of stages. Interleaving multiplies that by 1+(p-1)/(p·v).
func TestActivationsOfPipelines(t *testing.T) {
	m := preset(t, "GPT-3 175B") // 96 blocks; the current one may have freed its activations
	blocks := func(l Parallelism, stage int) float64 {
		for _, it := range estimate(t, Setup{Model: m, Microbatches: 64, Precision: mixed(t),
			Parallelism: l}).Stages[stage].Items {
			if it.Name == "sum after attention" {
				return float64(it.Count)
			}
		}
		t.Fatal("no line for the sum after attention")
		return 0
	}
	for _, p := range []int{1, 2, 4, 8, 16, 32} {
		if got := blocks(Parallelism{Pipeline: p}, 0); math.Abs(got-96) > 1 {
			t.Errorf("%d stages: the first saves the activations of %v blocks, want 96", p, got)
		}
		if got, want := blocks(Parallelism{Pipeline: p}, p-1), 96/float64(p); math.Abs(got-want) > 1 {
			t.Errorf("%d stages: the last saves the activations of %v blocks, want %v", p, got, want)
		}
	}
	for _, c := range [][2]int{{4, 2}, {8, 3}, {8, 12}} {
		p, v := c[0], c[1]
		want := 96 * (1 + float64(p-1)/float64(p*v))
		if got := blocks(Parallelism{Pipeline: p, Chunks: v, Schedule: Interleaved}, 0); math.Abs(got-want) > 1 {
			t.Errorf("%d stages in %d chunks: %v blocks, want %v", p, v, got, want)
		}
	}
	if got := blocks(Parallelism{Pipeline: 8, Schedule: GPipe}, 0); math.Abs(got-12*64) > 1 {
		t.Errorf("GPipe of 64 micro-batches: %v blocks, want %d", got, 12*64)
	}
}

func TestBadSetups(t *testing.T) {
	good := cost.Model{Layers: 4, Width: 64, Heads: 8, Vocab: 256, Context: 64, Hidden: 96}
	for want, change := range map[string]func(*Setup){
		"Layers is -1":                                  func(s *Setup) { s.Model.Layers = -1 },
		"Heads is 7, which does not divide":             func(s *Setup) { s.Model.Heads = 7 },
		"Setup.Batch is -1":                             func(s *Setup) { s.Batch = -1 },
		"Setup.Seq is -2":                               func(s *Setup) { s.Seq = -2 },
		"Setup.Parallelism.Data is -3":                  func(s *Setup) { s.Parallelism.Data = -3 },
		"Setup.Parallelism.Tensor is 3, which does not": func(s *Setup) { s.Parallelism.Tensor = 3 },
		"one must divide the other": func(s *Setup) {
			s.Parallelism.Tensor, s.Model.KVHeads, s.Model.Heads, s.Model.Width = 4, 6, 12, 96
		},
		"does not divide the MLP's hidden width 100": func(s *Setup) {
			s.Parallelism.Tensor, s.Model.Hidden = 8, 100
		},
		"Setup.Parallelism.Context is 3": func(s *Setup) { s.Parallelism.Context = 3 },
		"its 4 devices do not divide 30 tokens": func(s *Setup) {
			s.Seq, s.Parallelism.Tensor, s.Parallelism.Seq = 30, 4, true
		},
		"Setup.Parallelism.Pipeline is 5":          func(s *Setup) { s.Parallelism.Pipeline = 5 },
		"Setup.Parallelism.Chunks is 2":            func(s *Setup) { s.Parallelism.Chunks = 2 },
		"Setup.Parallelism.Schedule is \"zigzag\"": func(s *Setup) { s.Parallelism.Schedule = "zigzag" },
		"Setup.Parallelism.ZeRO is 4":              func(s *Setup) { s.Parallelism.ZeRO = 4 },
		"Setup.Dropout is 1":                       func(s *Setup) { s.Dropout = 1 },
		"Setup.Recompute: recompute: no policy":    func(s *Setup) { s.Recompute = "all" },
		"Setup.Method is \"eager\"":                func(s *Setup) { s.Method = "eager" },
		"which supports only plain data parallelism": func(s *Setup) {
			s.Method, s.Parallelism.Tensor = Compiled, 2
		},
		"learned positions for 64":                    func(s *Setup) { s.Model.PositionRows, s.Seq = 64, 65 },
		"overflow an int64":                           func(s *Setup) { s.Batch, s.Seq = 1<<31, 1<<28 },
		"make the model, the batch or the sequence s": func(s *Setup) { s.Seq = 1 << 28; s.Batch = 1 << 10 },
	} {
		s := Setup{Model: good}
		change(&s)
		if _, err := Estimate(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got the error %v, want one with %q", err, want)
		}
	}
	for _, n := range []int64{0, -5, 1 << 57} {
		if _, err := OfParameters(n, Setup{}); err == nil {
			t.Errorf("%d parameters: no error", n)
		}
	}
	if _, err := OfParameters(1e9, Setup{Optimizer: optim.Adafactor(1e-3)}); err == nil ||
		!strings.Contains(err.Error(), "depend on the parameters' shapes") {
		t.Errorf("Adafactor of a number of parameters: %v", err)
	}
	if _, err := OfParameters(1e9, Setup{Parallelism: Parallelism{Tensor: 2}}); err == nil ||
		!strings.Contains(err.Error(), "give a model") {
		t.Errorf("tensor parallelism of a number of parameters: %v", err)
	}
}

// Every advised change saves memory, and says how much it leaves.
func TestAdvice(t *testing.T) {
	s := Setup{Model: preset(t, "Llama 2 7B"), Precision: mixed(t), Batch: 2, Parallelism: Parallelism{Data: 8}}
	before := estimate(t, s).BytesPerDevice()
	changes := must.Get(Advise(s, 80<<30))(t)
	if len(changes) < 8 {
		t.Errorf("only %d changes", len(changes))
	}
	for i, c := range changes {
		if got := estimate(t, c.Setup).BytesPerDevice(); got != c.Bytes || got >= before || c.Fits != (got <= 80<<30) {
			t.Errorf("%s: %d bytes, of %d before, fits %v; the changed setup needs %d", c.What, c.Bytes, before, c.Fits,
				got)
		}
		if i > 0 && c.Bytes < changes[i-1].Bytes {
			t.Errorf("%s comes after %s, which saves less", c.What, changes[i-1].What)
		}
	}
}

// The combined changes fit the budget, without more devices where that is possible.
func TestCombine(t *testing.T) {
	s := Setup{Model: preset(t, "Llama 3 70B"), Precision: mixed(t), Parallelism: Parallelism{Data: 64}}
	changes, err := Combine(s, 80<<30)
	if err != nil || len(changes) < 2 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	last := changes[len(changes)-1]
	if got := estimate(t, last.Setup).BytesPerDevice(); !last.Fits || got != last.Bytes || got > 80<<30 ||
		last.Setup.Parallelism.Devices() != 64 {
		t.Errorf("the final setup needs %d bytes on %d devices, the change says %d, fits: %v", got,
			last.Setup.Parallelism.Devices(), last.Bytes, last.Fits)
	}
	if changes, err := Combine(s, 1<<50); len(changes) != 0 || err != nil {
		t.Errorf("with room for all: %v, %v", changes, err)
	}
	if changes, err := Combine(s, 1); err != nil || len(changes) == 0 || changes[len(changes)-1].Fits {
		t.Errorf("for one byte: %d changes, %v", len(changes), err)
	}
}

func TestEveryItemHasFormulaAndSource(t *testing.T) {
	for _, st := range estimate(t, Setup{Model: preset(t, "Llama 3 70B"), Precision: mixed(t), Microbatches: 8,
		Framework:   1 << 30,
		Parallelism: Parallelism{Data: 4, Tensor: 8, Seq: true, Pipeline: 4, ZeRO: 3}}).Stages {
		for _, it := range st.Items {
			if it.Name == "" || it.Formula == "" || it.Source == "" || it.Values == "" || it.Bytes < 1 || it.Count < 1 {
				t.Errorf("stage %d: %+v", st.Index, it)
			}
		}
	}
}

func FuzzFormula(f *testing.F) {
	f.Add("4*(a/t+2*ceil(k/t))*d", int64(3), int64(2))
	f.Add("ceil(a", int64(1), int64(1))
	f.Add("a/(t-t)", int64(9), int64(9))
	f.Fuzz(func(t *testing.T, formula string, a, b int64) {
		if len(formula) > 200 {
			return
		}
		_, _ = vars{"a": a, "t": b, "k": a, "d": b}.compute(formula) // no panic
	})
}

// A trillion parameters on 99 840 devices: the goal is 10 ms.
func BenchmarkTrillion(b *testing.B) {
	s := Setup{Model: preset(b, "Megatron 1008B"), Microbatches: 512, Precision: mixed(b),
		Recompute:   recompute.Selective,
		Parallelism: Parallelism{Data: 195, Tensor: 8, Seq: true, Pipeline: 64, ZeRO: 1}}
	for b.Loop() {
		must.Get(Estimate(s))(b)
	}
	b.ReportMetric(float64(s.Parallelism.Devices()), "devices")
}
