package memest

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestNotesStates(t *testing.T) {
	for _, r := range publishedTable(t, "notes_states.csv") {
		s := listed(t)(Notes{Params: r.number("params")}.States())
		if got := s.Bytes(); got != r.number("gb")*1e9 {
			t.Errorf("%s parameters: %s, want %s", r.text("params"), GB(got), r.text("gb"))
		}
		// 2 + 2 + 12 bytes of each
		P := r.number("params")
		if s.Of(Parameters) != 2*P || s.Of(Gradients) != 2*P || s.Of(Master)+s.Of(Optimizer) != 12*P {
			t.Errorf("%+v", s)
		}
	}
}

// parts splits bytes into those linear in the sequence length and those quadratic in it.
func parts(s Stage) (linear, quadratic int64) {
	for _, it := range s.Items {
		if strings.Contains(it.Formula, "s*s") || strings.Contains(it.Formula, "H*s/d") {
			quadratic += it.Bytes
		} else {
			linear += it.Bytes
		}
	}
	return linear, quadratic
}

func TestNotesReadings(t *testing.T) {
	random := rand.New(rand.NewPCG(33, 34))
	for range 300 {
		p := []int64{1, 2, 4}[random.IntN(3)]
		for _, c := range []struct {
			reading Reading
			linear  int64 // multiples of bsd
		}{
			{NormsTogether, (9+5+2)*p + 2}, {NormsEach, (9+5+4)*p + 2}, {PrintedTotal, 17*p + 2},
			{HiddenCode, 16*p + 2}, {Approximation, 34},
		} {
			if c.reading == Approximation {
				p = 2
			}
			n := Notes{Layers: 1 + random.IntN(9), Width: 1 + random.IntN(99), Heads: 1 + random.IntN(9),
				Sequence: 1 + random.IntN(99),
				Batch:    1 + random.IntN(9), Precision: int(p)}
			bsL := int64(n.Batch * n.Sequence * n.Layers)
			linear, quadratic := parts(listed(t)(n.Activations(c.reading)))
			wantLinear, wantQuadratic := c.linear*bsL*int64(n.Width), (2*p+1)*bsL*int64(n.Sequence*n.Heads)
			if linear != wantLinear || quadratic != wantQuadratic {
				t.Fatalf("%+v, %s: %d and %d, want %d and %d", n, c.reading, linear, quadratic, wantLinear,
					wantQuadratic)
			}
		}
	}
}
