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
		attention := int64(m.Width*q+2*m.Width*k+q*m.Width) + count(m.QKVBias, q+2*k) + count(m.OutBias, m.Width)
		mlp := int64(2*m.Width*f) + count(m.Gated, m.Width*f) + count(m.MLPBias, f+m.Width) +
			count(m.MLPBias && m.Gated, f)
		l := int64(m.Layers)
		want := Params{Layers: m.Layers, Embeddings: int64(m.Vocab * m.Width),
			Positions: int64(m.PositionRows * m.Width), Attention: l * attention, MLP: l * mlp, Norms: l * 2 * norm,
			LastNorm: norm, Head: count(!m.Tied, m.Vocab*m.Width)}
		got := m.Params()
		if got != want {
			t.Fatalf("%+v: %+v, want %+v", m, got, want)
		}
		block := attention + mlp + 2*norm
		if got.Block() != block || got.nonEmbedding() != l*block+norm ||
			got.Total() != l*block+norm+want.Embeddings+want.Positions+want.Head {
			t.Fatalf("%+v: block %d, without embeddings %d, total %d", m, got.Block(), got.nonEmbedding(), got.Total())
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
