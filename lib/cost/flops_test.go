package cost

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"gonum.org/v1/gonum/floats/scalar"
)

// The count is the sum over every matmul, one sequence, head and query at a time, with the two matmuls of its
// gradients.
func TestFLOPs(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		m := randomModel(random)
		s := Step{Sequences: 1 + random.IntN(3), Length: random.IntN(m.Context + 1), Causal: flip(random),
			Recompute: []Recompute{Nothing, Selective, Full}[random.IntN(3)]}
		got := must.Get(m.FLOPs(s))(t)
		length := s.Length
		if length == 0 {
			length = m.Context
		}
		var want Work
		matmul := func(of func(*Operations) *float64, recomputed bool, rows, columns, inner int) {
			flops := func(m, n, k int) float64 { return float64(2 * m * n * k) }
			*of(&want.Forward) += flops(rows, columns, inner)
			*of(&want.Backward) += flops(rows, inner, columns) + flops(inner, columns, rows)
			if recomputed {
				*of(&want.Recomputed) += flops(rows, columns, inner)
			}
		}
		full := s.Recompute == Full
		core := full || s.Recompute == Selective
		for range s.Sequences {
			for layer := range m.Layers {
				qkv := func(o *Operations) *float64 { return &o.QKV }
				switch {
				case m.KVRank == 0:
					for range m.Heads + 2*m.KV() {
						matmul(qkv, full, length, m.HeadDim(), m.Width)
					}
				case m.QueryRank == 0:
					matmul(qkv, full, length, m.Heads*m.HeadDim(), m.Width)
				default:
					matmul(qkv, full, length, m.QueryRank, m.Width)
					matmul(qkv, full, length, m.Heads*m.HeadDim(), m.QueryRank)
				}
				if m.KVRank > 0 {
					matmul(qkv, full, length, m.KVRank+m.RopeWidth, m.Width)
					for range m.Heads {
						matmul(qkv, full, length, m.HeadDim()-m.RopeWidth, m.KVRank)
						matmul(qkv, full, length, m.ValueDim(), m.KVRank)
					}
				}
				for range m.Heads {
					for query := range length {
						keys := length
						if s.Causal {
							keys = query + 1
						}
						matmul(func(o *Operations) *float64 { return &o.Scores }, core, 1, keys, m.HeadDim())
						matmul(func(o *Operations) *float64 { return &o.Values }, core, 1, m.ValueDim(), keys)
					}
					matmul(func(o *Operations) *float64 { return &o.Out }, full, length, m.Width, m.ValueDim())
				}
				mlp := func(rows, hidden int) {
					of := func(o *Operations) *float64 { return &o.MLP }
					if m.Gated {
						matmul(of, full, rows, hidden, m.Width)
					}
					matmul(of, full, rows, hidden, m.Width)
					matmul(of, full, rows, m.Width, hidden)
				}
				if m.Experts == 0 || layer < m.DenseLayers {
					mlp(length, m.MLPWidth())
					continue
				}
				matmul(func(o *Operations) *float64 { return &o.Router }, full, length, m.Experts, m.Width)
				for range m.SharedExperts {
					mlp(length, m.ExpertWidth())
				}
				for range length {
					for range m.ExpertsPerToken {
						mlp(1, m.ExpertWidth())
					}
				}
			}
			matmul(func(o *Operations) *float64 { return &o.Head }, false, length, m.Vocab, m.Width)
		}
		if got != want {
			t.Fatalf("%+v, %+v:\n%+v, want\n%+v", m, s, got, want)
		}
	}
}

// A plain GPT of any size has the operations of Narayanan et al. 2021, equation 3: with full recomputation 96Bslh²(1 +
// s/(6h) + V/(16lh)), without 72Bslh²(1 + s/(6h) + V/(12lh)). Recomputing the core of attention adds 4Bs²lh to the
// latter.
func TestNarayananFLOPs(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		a := 1 + random.IntN(8)
		m := Model{Layers: 1 + random.IntN(100), Width: a * (1 + random.IntN(999)), Heads: a,
			Vocab: 2 + random.IntN(50000), Context: 1 + random.IntN(4000)}
		step := Step{Sequences: 1 + random.IntN(2000)}
		B, s, l, h, V := float64(step.Sequences), float64(m.Context), float64(m.Layers), float64(m.Width),
			float64(m.Vocab)
		model := 72 * B * s * l * h * h * (1 + s/(6*h) + V/(12*l*h))
		for recompute, want := range map[Recompute]float64{
			Nothing: model, Selective: model + 4*B*s*s*l*h, Full: 96 * B * s * l * h * h * (1 + s/(6*h) + V/(16*l*h)),
		} {
			step.Recompute = recompute
			w := must.Get(m.FLOPs(step))(t)
			if got := w.Hardware(); !scalar.EqualWithinRel(got, want, 1e-13) {
				t.Fatalf("%+v, %+v: %g operations, want %g", m, step, got, want)
			}
			if got := w.Model(); !scalar.EqualWithinRel(got, model, 1e-13) {
				t.Fatalf("%+v, %+v: %g operations without recomputation, want %g", m, step, got, model)
			}
		}
	}
}

// TokenFLOPs is the exact count plus 6 FLOPs for each parameter of a table or vector, which no matmul uses.
func TestTokenFLOPs(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for range 200 {
		m := randomModel(random)
		w := must.Get(m.FLOPs(Step{Sequences: 1}))(t)
		others := int64(0)
		for _, tensor := range m.Tensors() {
			table := tensor.Part == Position || tensor.Part == Embedding && !m.Tied
			vector := tensor.Part != Embedding && tensor.Part != Position && !strings.HasSuffix(tensor.Name, ".w")
			switch {
			case vector && tensor.Part == Routed:
				others += int64(tensor.Count) * tensor.Size() / int64(m.Experts) * int64(m.ExpertsPerToken)
			case table || vector:
				others += int64(tensor.Count) * tensor.Size()
			}
		}
		if got, want := m.TokenFLOPs(m.Context),
			w.Model()/float64(m.Context)+6*float64(others); !scalar.EqualWithinRel(got, want, 1e-12) {
			t.Fatalf("%+v: %g, want %g", m, got, want)
		}
	}
}

// Brown et al. 2020, table D.1: GPT-3 175B took 3.14e23 FLOPs for 300 billion tokens by the rough count. The exact
// count is 3% more.
func TestGPT3FLOPs(t *testing.T) {
	m := must.Get(Preset("GPT-3 175B"))(t)
	forward, backward := RoughFLOPs(float64(m.Params().Total()), 300e9)
	if got := forward + backward; !scalar.EqualWithinAbs(got, 3.14e23, 0.005e23) || backward != 2*forward {
		t.Errorf("%g and %g operations, want 3.14e23 together", forward, backward)
	}
	w := must.Get(m.FLOPs(Step{Sequences: 1}))(t)
	if got := w.Model() / 2048 * 300e9 / (forward + backward); got < 1.02 || got > 1.03 {
		t.Errorf("the exact count is %g times the rough one", got)
	}
}

func TestFLOPsErrors(t *testing.T) {
	m := Model{Layers: 2, Width: 12, Heads: 4, Vocab: 256, Context: 8}
	for _, c := range []struct {
		step Step
		want string
	}{
		{Step{Sequences: 1, Length: 8}, ""},
		{Step{}, "cost: Step.Sequences is 0: set it to at least 1"},
		{Step{Sequences: 1, Length: 9}, "cost: Step.Length is 9: set it to at most Model.Context, which is 8, or to " +
			"0 for that"},
		{Step{Sequences: 1, Length: -1}, "cost: Step.Length is -1: set it to at most Model.Context, which is 8, or " +
			"to 0 for that"},
		{Step{Sequences: 1, Recompute: "all"}, `cost: Step.Recompute is "all": set it to "", "selective" or "full"`},
	} {
		_, err := m.FLOPs(c.step)
		check(t, err, c.want)
	}
	_, err := Model{}.FLOPs(Step{Sequences: 1})
	check(t, err, "cost: Model.Layers is 0: set it to at least 1")
}
