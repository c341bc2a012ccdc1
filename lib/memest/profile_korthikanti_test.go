package memest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/cost"
)

// The operations of a layer add up to each line of table 2, for any model.
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
				Model: cost.Model{Layers: 1, Width: heads * (1 + random.IntN(64)), Heads: heads, Vocab: 99, Context: tensor * (1 + random.IntN(512))},
				Batch: 1 + random.IntN(8), Tensor: tensor, SequenceParallel: r.text("sequence") == "yes", Recompute: cost.Recompute(r.text("recompute")),
			}
			v := vars{"s": int64(k.Model.Context), "b": int64(k.Batch), "h": int64(k.Model.Width), "a": int64(heads), "t": int64(tensor)}
			want, err := v.compute(r.text("bytes"))
			if err != nil {
				t.Fatal(err)
			}
			if got := listed(t)(k.Layer()).Bytes(); got != want {
				t.Fatalf("%s, %+v: %d bytes, want %d", r.text("configuration"), k, got, want)
			}
		}
	}
}

// korthikantiModels are those of table 3, with tensor and sequence parallelism.
func korthikantiModels(t *testing.T) map[string]Korthikanti {
	models := map[string]Korthikanti{}
	for _, r := range publishedTable(t, "korthikanti_table3.csv") {
		models[r.text("model")] = Korthikanti{
			Model: cost.Model{Layers: int(r.number("layers")), Width: int(r.number("width")), Heads: int(r.number("heads")), Vocab: 51200, Context: 2048},
			Batch: int(r.number("batch")), Tensor: int(r.number("tensor")), Pipeline: int(r.number("pipeline")), Chunks: int(r.number("chunks")),
			SequenceParallel: true,
		}
	}
	return models
}

// §5: the scores are 5as/h = 80 of sbh for GPT-3 and 64 for MT-NLG, so that not to keep them saves 70% and 65%.
func TestKorthikantiSelective(t *testing.T) {
	for name, want := range map[string]struct{ scores, percent float64 }{"175B": {80, 70}, "530B": {64, 65}} {
		k := korthikantiModels(t)[name]
		all := float64(listed(t)(k.Layer()).Bytes())
		k.Recompute = cost.Selective
		saved := all - float64(listed(t)(k.Layer()).Bytes())
		sbh := float64(k.Model.Context * k.Batch * k.Model.Width)
		if got := saved * float64(k.Tensor) / sbh; got != want.scores {
			t.Errorf("%s: scores are %g·sbh, want %g", name, got, want.scores)
		}
		if got := 100 * saved / all; !scalar.EqualWithinAbs(got, want.percent, 0.5) {
			t.Errorf("%s: saves %.1f%%, want %g%%", name, got, want.percent)
		}
	}
}

// §6.1 says of figure 7, which is measured, that both techniques need less than 20% of what tensor parallelism needs alone,
// and full recomputation 10%. The formulas say 16% to 20.2% and 7.6% to 9.5%: a little more than a fifth for the largest two.
func TestKorthikantiFigure7(t *testing.T) {
	for name, want := range map[string]struct{ both, full string }{
		"22B": {"16.1", "7.6"}, "175B": {"18.5", "8.7"}, "530B": {"20.2", "9.5"}, "1T": {"20.2", "9.5"},
	} {
		k := korthikantiModels(t)[name]
		k.SequenceParallel = false
		baseline := float64(listed(t)(k.Layer()).Bytes())
		k.Recompute = cost.Full
		full := float64(listed(t)(k.Layer()).Bytes())
		k.Recompute, k.SequenceParallel = cost.Selective, true
		both := float64(listed(t)(k.Layer()).Bytes())
		if got := percents(both / baseline); got != want.both {
			t.Errorf("%s: both are %s%%, want %s%%", name, got, want.both)
		}
		if got := percents(full / baseline); got != want.full {
			t.Errorf("%s: full is %s%%, want %s%%", name, got, want.full)
		}
	}
}

func percents(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

// The first stage keeps as much as all layers without a pipeline; interleaved, (1 + (p−1)/(pm)) times that (§4.2.3). And
// outside the layers it has sbhL/t·(p/L + 4/L·(1+v/h) if p=1) (§4.3).
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

// §4.3 says that what is outside the layers is less than 0.01% of the 22B model's activations. By its own formula it is
// 0.56%; 0.01 is that as a fraction, rounded.
func TestKorthikantiOutside(t *testing.T) {
	k := korthikantiModels(t)["22B"]
	all := float64(listed(t)(k.FirstStage()).Bytes())
	outside := all - float64(k.Model.Layers)*float64(listed(t)(k.Layer()).Bytes())
	if share := outside / all; !scalar.EqualWithinAbs(share, 0.0056, 0.00005) {
		t.Errorf("a share of %g", share)
	}
}

// Appendix B: to free each stage's output saves sbhp numbers of 2 bytes on the first stage of the 530B model, 2.73 GB. So
// their GB are 2³⁰ bytes.
func TestKorthikantiUnits(t *testing.T) {
	k := korthikantiModels(t)["530B"]
	if got := GiB(2 * int64(k.Model.Context*k.Batch*k.Model.Width*k.Pipeline)); got != "2.73 GiB" {
		t.Error(got)
	}
}
