package memest

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/cost"
)

// A device has its share of the experts and all other parameters; ZeRO shards the experts' states over the devices with
// the same experts, and the others over all.
func TestStatesOfExperts(t *testing.T) {
	m := preset(t, "Mixtral 8x7B")
	p := m.Params()
	experts, rest := p.Experts, p.Total()-p.Experts
	for _, c := range []struct {
		data, expert, zero             int
		parameters, gradients, updated int64 // of a device; updated are those whose optimizer states it has
	}{
		{8, 1, 0, rest + experts, rest + experts, rest + experts},
		{8, 8, 0, rest + experts/8, rest + experts/8, rest + experts/8},
		{8, 8, 1, rest + experts/8, rest + experts/8, rest/8 + experts/8},
		{16, 8, 1, rest + experts/8, rest + experts/8, rest/16 + experts/16},
		{16, 4, 2, rest + experts/4, rest/16 + experts/16, rest/16 + experts/16},
		{16, 4, 3, rest/16 + experts/16, rest/16 + experts/16, rest/16 + experts/16},
	} {
		st := estimate(t, Setup{Model: m, Precision: mixed(t), Seq: 1024,
			Parallelism: Parallelism{Data: c.data, Expert: c.expert, ZeRO: c.zero}}).Stages[0]
		for kind, want := range map[Kind]int64{Parameters: 2 * c.parameters, Gradients: 2 * c.gradients,
			Master: 4 * c.updated, Optimizer: 8 * c.updated} {
			// Every tensor's size is a multiple of 16 here, so that no shard is rounded.
			if got := st.Of(kind); got != want {
				t.Errorf("data %d, expert %d, ZeRO %d: %s are %d bytes, want %d", c.data, c.expert, c.zero, kind, got,
					want)
			}
		}
	}
}

// What a block with experts saves, counted by hand for OLMoE in bfloat16: of a token E and K numbers, of each of its K
// copies the width h and the experts' width F.
func TestActivationsOfExperts(t *testing.T) {
	m := preset(t, "OLMoE-1B-7B")
	const tokens, E, K, h, F = 2 * 512, 64, 8, 2048, 1024
	st := estimate(t, Setup{Model: m, Precision: mixed(t), Batch: 2, Seq: 512, Flash: true}).Stages[0]
	got := map[string]int64{}
	for _, it := range st.Items {
		got[it.Name] = it.Bytes / it.Count
	}
	for name, want := range map[string]int64{
		"router's logits and probabilities":           tokens * 2 * 4 * E,
		"numbers and weights of a token's experts":    tokens * 2 * 4 * K,
		"inputs of the experts":                       tokens * K * h * 2,
		"experts' gate projection":                    tokens * K * F * 2,
		"experts' up projection":                      tokens * K * F * 2,
		"experts: gated activation":                   tokens * K * F * 2,
		"experts' outputs before their weighted sum":  tokens * K * h * 2,
		"second normalization":                        tokens * h * 2,
		"queries and keys before their normalization": tokens * 2 * h * 2,
	} {
		if got[name] != want {
			t.Errorf("%s: %d bytes, want %d", name, got[name], want)
		}
	}
	if _, ok := got["MLP up projection"]; ok {
		t.Error("a model without dense layers has an MLP")
	}
}

// Leading dense layers save the activations of an MLP, the other layers those of experts with their shared ones.
func TestActivationsOfDenseLayers(t *testing.T) {
	m := preset(t, "DeepSeek-V3")
	st := estimate(t, Setup{Model: m, Precision: mixed(t), Seq: 4096, Flash: true,
		Parallelism: Parallelism{Data: 64, Expert: 64}}).Stages[0]
	for _, it := range st.Items {
		want := int64(-1)
		switch it.Name {
		case "MLP up projection":
			want = 3 * 4096 * 18432 * 2
		case "experts' up projection":
			want = 58 * 4096 * (8 + 1) * 2048 * 2
		case "keys and values":
			want = 61 * 4096 * 128 * (192 + 128) * 2
		case "compressed keys and values and their normalization":
			want = 61 * 4096 * (2*512 + 64) * 2
		}
		if want >= 0 && (it.Bytes > want || it.Bytes < want-want/50) { // the current block's may be freed
			t.Errorf("%s: %d bytes, want about %d", it.Name, it.Bytes, want)
		}
	}
}

// A pipeline's devices together have every parameter once, also where only some blocks have experts; those of DualPipe
// have two copies.
func TestExpertsOnPipelines(t *testing.T) {
	m := preset(t, "DeepSeek-V3")
	for schedule, copies := range map[Schedule]int64{OneFOneB: 1, ZBV: 1, DualPipe: 2} {
		for _, pipeline := range []int{2, 16} {
			var all int64
			for _, st := range estimate(t, Setup{Model: m, Precision: mixed(t), Seq: 4096, Microbatches: 32,
				Parallelism: Parallelism{Pipeline: pipeline, Schedule: schedule}}).Stages {
				all += st.Of(Parameters)
			}
			if want := 2 * copies * m.Params().Total(); all != want {
				t.Errorf("%s of %d stages: %d bytes of parameters, want %d", schedule, pipeline, all, want)
			}
		}
	}
}

// Each line of a model with experts and latent attention has a formula, values and a source, in every layout.
func TestItemsOfExperts(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 100 {
		m := randomModel(r)
		m.Experts, m.ExpertsPerToken, m.ExpertHidden, m.Context = 8, 2, 16, 64
		for _, st := range estimate(t, Setup{Model: m, Precision: mixed(t), Flash: r.IntN(2) == 0,
			Parallelism: Parallelism{Data: 8, Expert: 4, Tensor: 2, Seq: true, Context: 2, ZeRO: r.IntN(4)}}).Stages {
			sent := false
			for _, it := range st.Items {
				if it.Name == "" || it.Formula == "" || it.Source == "" || it.Values == "" || it.Bytes < 1 || it.Count < 1 {
					t.Errorf("%+v: %+v", m, it)
				}
				sent = sent || it.Name == "tokens being sent to their experts"
			}
			if !sent {
				t.Errorf("%+v: no line for the tokens that are sent", m)
			}
		}
	}
}

func TestBadSetupsOfExperts(t *testing.T) {
	good := Setup{Model: cost.Model{Layers: 2, Width: 64, Heads: 8, Vocab: 256, Context: 64, Experts: 6,
		ExpertsPerToken: 2, ExpertHidden: 20}, Parallelism: Parallelism{Data: 6, Expert: 3}}
	estimate(t, good)
	folded := good
	folded.Model.ExpertHidden, folded.Parallelism.Tensor = 21, 2 // each device has one expert, whole
	routed := func(s Setup) (n int64) {
		for _, it := range estimate(t, s).Stages[0].Items {
			if it.Kind == Parameters && it.Name == string(cost.Routed) {
				n = it.Bytes
			}
		}
		return n
	}
	if got, want := routed(folded), folded.Model.Params().Experts/6*4; got != want {
		t.Errorf("a device of 6 has experts of %d bytes, want %d", got, want)
	}
	for want, change := range map[string]func(*Setup){
		"Setup.Parallelism.Expert is -1": func(s *Setup) { s.Parallelism.Expert = -1 },
		"Expert is 3 and the model has no experts": func(s *Setup) {
			s.Model.Experts, s.Model.ExpertsPerToken, s.Model.ExpertHidden = 0, 0, 0
		},
		"Expert is 4 and Tensor is 1, whose product does not divide the model's 6": func(s *Setup) { s.Parallelism.Expert = 4 },
		"Expert is 3, which does not divide the 4 data-parallel dev":               func(s *Setup) { s.Parallelism.Data = 4 },
		"Expert is 3 and Tensor is 4, whose product":                               func(s *Setup) { s.Parallelism.Tensor = 4 },
		"which does not divide the shared experts' hidden width 21": func(s *Setup) {
			s.Parallelism.Tensor, s.Model.SharedExperts, s.Model.ExpertHidden = 2, 1, 21
		},
		"does not divide the 3 tokens that the router takes": func(s *Setup) { s.Parallelism.Tensor, s.Seq = 2, 3 },
		"was not measured": func(s *Setup) { s.Method, s.Parallelism = Compiled, Parallelism{} },
	} {
		s := good
		change(&s)
		if _, err := Estimate(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got the error %v, want one with %q", err, want)
		}
	}
	k := Korthikanti{Model: good.Model}
	if _, err := k.Layer(); err == nil || !strings.Contains(err.Error(), "6 experts") {
		t.Errorf("Korthikanti's formulas for experts: %v", err)
	}
}

// Advice for a model with experts is to split them.
func TestAdviceForExperts(t *testing.T) {
	changes, err := Advise(Setup{Model: preset(t, "Mixtral 8x7B"), Precision: mixed(t), Seq: 1024,
		Parallelism: Parallelism{Data: 8}}, 80<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.What == "expert parallelism 8" && c.Setup.Parallelism.Expert == 8 {
			return
		}
	}
	t.Errorf("no expert parallelism among %d changes", len(changes))
}
