package cost

import (
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// The counts equal sums written out for each part.
func TestParams(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		m := randomModel(random)
		must.Do(t, m.Validate())
		count := func(yes bool, n int) int64 {
			if yes {
				return int64(n)
			}
			return 0
		}
		kv, d, f := m.KVHeads, m.HeadWidth, m.Hidden
		if kv == 0 {
			kv = m.Heads
		}
		if d == 0 {
			d = m.Width / m.Heads
		}
		if f == 0 {
			f = 4 * m.Width
		}
		norm := int64(m.Width) + count(m.NormBias, m.Width)
		q, k := m.Heads*d, kv*d
		attention := int64(m.Width*q+2*m.Width*k+q*m.Width) + count(m.QKVBias, q+2*k)
		if c := m.KVRank; c > 0 { // DeepSeek-AI 2024, DeepSeek-V2, §2.1: the matrices of equations 9 to 19
			v := m.Heads * d
			if m.ValueWidth != 0 {
				v = m.Heads * m.ValueWidth
			}
			r := m.QueryRank
			attention = int64(m.Width*c + c*(m.Heads*(d-m.RopeWidth)) + c*v + m.Width*m.RopeWidth + v*m.Width + c)
			attention += count(r == 0, m.Width*q) + count(r > 0, m.Width*r+r*q+r)
		}
		attention += count(m.OutBias, m.Width) + count(m.Sinks, m.Heads) + count(m.QKNorm == "head", 2*d) +
			count(m.QKNorm == "all", q+k)
		mlp := func(f int) int64 {
			return int64(2*m.Width*f) + count(m.Gated, m.Width*f) + count(m.MLPBias, f+m.Width) +
				count(m.MLPBias && m.Gated, f)
		}
		l, e, fe := int64(m.Layers), int64(m.Experts), m.ExpertHidden
		if fe == 0 {
			fe = f
		}
		dense := l
		if e > 0 {
			dense = int64(m.DenseLayers)
		}
		router := count(e > 0, m.Width*m.Experts) + count(m.RouterBias, m.Experts)
		shared := count(m.SharedExperts > 0, m.SharedExperts*fe*2*m.Width) +
			count(m.SharedExperts > 0 && m.Gated, m.SharedExperts*fe*m.Width) +
			count(m.SharedExperts > 0 && m.MLPBias, m.SharedExperts*fe+m.Width) +
			count(m.SharedExperts > 0 && m.MLPBias && m.Gated, m.SharedExperts*fe)
		biases := count(m.NoExpertBias, fe+m.Width) + count(m.NoExpertBias && m.Gated, fe)
		experts := (l - dense) * e * (mlp(fe) - biases)
		want := Params{Layers: m.Layers, Embeddings: int64(m.Vocab * m.Width),
			Positions: int64(m.PositionRows * m.Width), Attention: l * attention,
			MLP: dense*mlp(f) + (l-dense)*(router+shared) + experts, Norms: l * 2 * norm, LastNorm: norm,
			Head: count(!m.Tied, m.Vocab*m.Width), Experts: experts,
			Idle: (l - dense) * (e - int64(m.ExpertsPerToken)) * (mlp(fe) - biases)}
		got := m.Params()
		if got != want {
			t.Fatalf("%+v: %+v, want %+v", m, got, want)
		}
		blocks := want.Attention + want.MLP + want.Norms
		if got.Block() != blocks/l || got.nonEmbedding() != blocks+norm ||
			got.Total() != blocks+norm+want.Embeddings+want.Positions+want.Head ||
			got.Active() != got.Total()-want.Idle {
			t.Fatalf("%+v: block %d, without embeddings %d, total %d, active %d", m, got.Block(), got.nonEmbedding(),
				got.Total(), got.Active())
		}
	}
}

// Without biases and normalizations a block has exactly 12h² parameters or, gated, 16h²; attention has 4h² of them.
func TestRoughBlock(t *testing.T) {
	for _, gated := range []bool{false, true} {
		p := Model{Layers: 3, Width: 64, Heads: 4, Vocab: 2, Context: 1, Gated: gated}.Params()
		if got, want := float64(p.Block()-p.Norms/3), RoughBlock(64, gated); got != want {
			t.Errorf("gated %v: a block has %g, want %g", gated, got, want)
		}
		if got := p.Attention / 3; got != 4*64*64 {
			t.Errorf("attention has %d, want 4·64²", got)
		}
	}
	// Llama's hidden width is 8/3·h, rounded up to a multiple of 256: within 1% of 12h², far from 16h².
	m := must.Get(Preset("Llama 2 7B"))(t)
	if got := float64(m.Params().Block()) / RoughBlock(m.Width, false); got < 1 || got > 1.01 {
		t.Errorf("a block of Llama 2 7B is %g times 12h²", got)
	}
}
