package memest

import (
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/recompute"
)

// For ever smaller budgets, the chosen policy fits and recomputes no less than the one before.
func TestRecomputeForABudget(t *testing.T) {
	s := Setup{Model: cost.Model{Layers: 12, Width: 768, Heads: 12, Vocab: 50257, Context: 1024, PositionRows: 1024,
		Tied: true}, Batch: 8,
		Precision: mixed(t)}
	steps := must.Get(Steps(s))(t)
	recomputed := func(p recompute.Policy) (sum float64) {
		plan := must.Get(p.Plan(s.Model.Layers))(t)
		for i, step := range steps {
			if plan[i/9].Has(recompute.Op(i % 9)) {
				sum += step.Cost
			}
		}
		return sum
	}
	all := estimate(t, s).BytesPerDevice()
	if p, err := Recompute(s, all); p != recompute.None || err != nil {
		t.Errorf("with room for everything: %q, %v", p, err)
	}
	last := 0.0
	for _, share := range []float64{0.9, 0.7, 0.6} {
		budget := int64(share * float64(all))
		p := must.Get(Recompute(s, budget))(t)
		changed := s
		changed.Recompute = p
		if got := estimate(t, changed).BytesPerDevice(); got > budget {
			t.Errorf("%s for %d bytes needs %d", p, budget, got)
		}
		if now := recomputed(p); now < last || now == 0 {
			t.Errorf("for %d bytes %g operations are recomputed, for a larger budget %g", budget, now, last)
		} else {
			last = now
		}
	}
	if block := recomputed(recompute.Block); last >= block {
		t.Errorf("60%% of the memory costs %g operations, recomputing whole blocks %g", last, block)
	}
	if p, err := Recompute(s, 1<<30); err == nil {
		t.Errorf("a GiB is enough: %s", p)
	}
}
