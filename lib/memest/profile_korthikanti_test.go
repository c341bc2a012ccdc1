package memest

import (
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
)

// The activations of a layer add up to each line of table 2, for any model.
func TestKorthikantiTable2(t *testing.T) {
	random := rand.New(rand.NewPCG(35, 36))
	for _, r := range publishedTable(t, "korthikanti_table2.csv") {
		for range 50 {
			tensor := 1
			if r.text("tensor") == "yes" {
				tensor = 1 + random.IntN(8)
			}
			heads := tensor * (1 + random.IntN(8))
			k := Korthikanti{
				Model: cost.Model{Layers: 1, Width: heads * (1 + random.IntN(64)), Heads: heads, Vocab: 99,
					Context: tensor * (1 + random.IntN(512))},
				Batch: 1 + random.IntN(8), Tensor: tensor, SequenceParallel: r.text("sequence") == "yes",
				Recompute: cost.Recompute(r.text("recompute")),
			}
			v := vars{"s": int64(k.Model.Context), "b": int64(k.Batch), "h": int64(k.Model.Width), "a": int64(heads),
				"t": int64(tensor)}
			want := must.Get(v.compute(r.text("bytes")))(t)
			if got := listed(t)(k.Layer()).Bytes(); got != want.bytes {
				t.Fatalf("%s, %+v: %d bytes, want %d", r.text("configuration"), k, got, want.bytes)
			}
		}
	}
}

// korthikantiModels are those of table 3, with tensor and sequence parallelism.
func korthikantiModels(t *testing.T) map[string]Korthikanti {
	models := map[string]Korthikanti{}
	for _, r := range publishedTable(t, "korthikanti_table3.csv") {
		models[r.text("model")] = Korthikanti{
			Model: cost.Model{Layers: int(r.number("layers")), Width: int(r.number("width")),
				Heads: int(r.number("heads")), Vocab: 51200, Context: 2048},
			Batch: int(r.number("batch")), Tensor: int(r.number("tensor")), Pipeline: int(r.number("pipeline")),
			Chunks:           int(r.number("chunks")),
			SequenceParallel: true,
		}
	}
	return models
}

// The first stage saves as much as all layers without a pipeline; interleaved, (1 + (p−1)/(pm)) times that (§4.2.3).
// Outside the layers it saves sbhL/t·(p/L + 4/L·(1+v/h) if p=1) (§4.3).
func TestKorthikantiFirstStage(t *testing.T) {
	for name, k := range korthikantiModels(t) {
		layer := float64(listed(t)(k.Layer()).Bytes())
		L, p, m := float64(k.Model.Layers), float64(k.Pipeline), float64(k.Chunks)
		want := layer * L
		if m > 1 {
			want *= 1 + (p-1)/(p*m)
		}
		sbht := float64(k.Model.Context*k.Batch*k.Model.Width) / float64(k.Tensor)
		outside := p
		if p == 1 {
			outside += 4 * (1 + float64(k.Model.Vocab)/float64(k.Model.Width))
		}
		if got := float64(listed(t)(k.FirstStage()).Bytes()); !scalar.EqualWithinRel(got, want+outside*sbht, 1e-12) {
			t.Errorf("%s: %g bytes, want %g", name, got, want+outside*sbht)
		}
	}
}
