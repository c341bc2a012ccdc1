package cost

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"gonum.org/v1/gonum/floats/scalar"
)

// setting has everything that a comparison may depend on.
type setting struct {
	rates         Rates
	params        float64
	width, layers int
	seq, mbs      int
	ranks         int
}

func (s setting) tokens() float64 { return float64(s.seq * s.mbs) }
func (s setting) block() float64  { return RoughBlock(s.width, true) }

func randomSetting(r *rand.Rand) setting {
	return setting{Rates{1e15 * (0.1 + r.Float64()), 1e11 * (0.1 + r.Float64()), float64(int(1) << r.IntN(3))},
		1e9 * (0.1 + r.Float64()), 1 + r.IntN(10000), 1 + r.IntN(100), 1 + r.IntN(10000), 1 + r.IntN(16),
		2 + r.IntN(100)}
}

var comparisons = map[string]struct {
	of func(setting) (Overlap, error)
	// the ratio without F/B, and the fields of setting that it depends on
	ratio     func(e, T, h, layers, n float64) float64
	dependsOn map[string]bool
}{
	"DataParallel": {
		func(s setting) (Overlap, error) { return s.rates.DataParallel(s.params, s.tokens(), s.ranks) },
		func(e, T, h, layers, n float64) float64 { return e * (n - 1) / (2 * T * n) },
		map[string]bool{"seq": true, "mbs": true, "ranks": true},
	},
	"ZeRO3": {
		func(s setting) (Overlap, error) { return s.rates.ZeRO3(s.block(), s.tokens(), s.ranks) },
		func(e, T, h, layers, n float64) float64 { return e * (n - 1) / (2 * T * n) },
		map[string]bool{"seq": true, "mbs": true, "ranks": true},
	},
	"TensorParallel": {
		func(s setting) (Overlap, error) { return s.rates.TensorParallel(s.width, s.tokens(), s.ranks) },
		func(e, T, h, layers, n float64) float64 { return e * (n - 1) / (2 * h) },
		map[string]bool{"width": true, "ranks": true},
	},
	"Pipeline": {
		func(s setting) (Overlap, error) { return s.rates.Pipeline(s.width, s.block(), s.tokens(), s.layers) },
		func(e, T, h, layers, n float64) float64 { return e / (32 * h * layers) },
		map[string]bool{"width": true, "layers": true},
	},
}

// The ratios are those of the formulas, and change only with what they depend on.
func TestOverlap(t *testing.T) {
	changes := map[string]func(*setting){
		"params": func(s *setting) { s.params *= 3 },
		"width":  func(s *setting) { s.width *= 3 },
		"layers": func(s *setting) { s.layers *= 3 },
		"seq":    func(s *setting) { s.seq *= 3 },
		"mbs":    func(s *setting) { s.mbs *= 3 },
		"ranks":  func(s *setting) { s.ranks *= 3 },
	}
	r := rand.New(rand.NewPCG(17, 18))
	for name, c := range comparisons {
		for range 200 {
			s := randomSetting(r)
			o := must.Get(c.of(s))(t)
			want := c.ratio(s.rates.ElementBytes, s.tokens(), float64(s.width), float64(s.layers),
				float64(s.ranks)) * s.rates.FLOPS / s.rates.Bandwidth
			if !scalar.EqualWithinRel(o.Ratio, want, 1e-12) ||
				!scalar.EqualWithinRel(float64(o.Communication/o.Computation), want, 1e-12) {
				t.Fatalf("%s, %+v: %+v, want a ratio of %v", name, s, o, want)
			}
			if o.Hidden != (o.Ratio < 1) || o.Formula == "" {
				t.Fatalf("%s: %+v", name, o)
			}
			for what, change := range changes {
				other := s
				change(&other)
				same := scalar.EqualWithinRel(must.Get(c.of(other))(t).Ratio, o.Ratio, 1e-12)
				// Tripling the ranks changes (n−1)/n by at least 1/(3n), far more than the tolerance.
				if same == c.dependsOn[what] {
					t.Fatalf("%s: the ratio changes with %s: %v, want %v", name, what, !same,
						!same != c.dependsOn[what])
				}
			}
			faster := s
			faster.rates.FLOPS *= 5
			faster.rates.Bandwidth *= 5
			if got := must.Get(c.of(faster))(t); !scalar.EqualWithinRel(got.Ratio, o.Ratio, 1e-12) ||
				!scalar.EqualWithinRel(float64(got.Computation)*5, float64(o.Computation), 1e-12) {
				t.Fatalf("%s, both rates five times as high: %+v, before %+v", name, got, o)
			}
		}
	}
}

// Times that can be checked by hand: bfloat16, h = 4096, 4096 tokens, 8 ranks, 1e15 FLOPs and 1e11 bytes a second.
func TestOverlapByHand(t *testing.T) {
	rates := Rates{FLOPS: 1e15, Bandwidth: 1e11, ElementBytes: 2}
	s := setting{rates: rates, params: 1e9, width: 4096, layers: 4, seq: 4096, mbs: 1, ranks: 8}
	for name, want := range map[string]Overlap{
		"DataParallel": {Communication: 2e9 * 1.75 / 1e11, Computation: 4 * 4096e9 / 1e15},
		"ZeRO3": {Communication: 16 * 4096 * 4096 * 2 * 0.875 / 1e11,
			Computation: 2 * 4096 * 16 * 4096 * 4096 / 1e15},
		"TensorParallel": {Communication: 4096 * 4096 * 2 * 0.875 / 1e11,
			Computation: 2 * 4096 * 4096 * 4096 / 8 / 1e15},
		"Pipeline": {Communication: 4096 * 4096 * 2 / 1e11, Computation: 4 * 2 * 4096 * 16 * 4096 * 4096 / 1e15},
	} {
		got := must.Get(comparisons[name].of(s))(t)
		if !scalar.EqualWithinRel(float64(got.Communication), float64(want.Communication), 1e-12) ||
			!scalar.EqualWithinRel(float64(got.Computation), float64(want.Computation), 1e-12) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestOverlapErrors(t *testing.T) {
	good := Rates{FLOPS: 1, Bandwidth: 1, ElementBytes: 2}
	o, err := good.DataParallel(1, 1, 1)
	if err != nil || o.Ratio != 0 || !o.Hidden {
		t.Errorf("one replica: %+v, %v", o, err)
	}
	_, err = good.DataParallel(0, 1, 1)
	check(t, err, "cost: parameters is 0: give a positive number")
	_, err = good.ZeRO3(1, math.NaN(), 1)
	check(t, err, "cost: tokens is NaN: give a positive number")
	_, err = good.TensorParallel(1, 1, 0)
	check(t, err, "cost: ranks is 0: give a positive number")
	_, err = good.Pipeline(1, 1, 1, -1)
	check(t, err, "cost: layers is -1: give a positive number")
	_, err = Rates{}.DataParallel(1, 1, 1)
	check(t, err, "cost: Rates.FLOPS is 0: give a positive number")
	_, err = Rates{FLOPS: 1, Bandwidth: 1}.DataParallel(1, 1, 1)
	check(t, err, "cost: Rates.ElementBytes is 0: give a positive number")
}
