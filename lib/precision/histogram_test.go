package precision_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/lib/precision"
)

func TestHistogram(t *testing.T) {
	var h precision.Histogram
	precision.Add(&h, []float32{0, float32(math.Copysign(0, -1)), 1, -1.5, 2, 0.99, float32(math.Inf(1)),
		float32(math.NaN()), math.SmallestNonzeroFloat32})
	precision.Add(&h, []float64{0, 3, math.SmallestNonzeroFloat64, math.MaxFloat64, math.Inf(-1)})
	want := map[int]int{0: 2, 1: 2, -1: 1, -149: 1, -1074: 1, 1023: 1}
	if h.Zeros != 3 || h.NonFinite != 3 || len(h.Counts) != len(want) {
		t.Errorf("histogram is %+v", h)
	}
	exponents := h.Exponents()
	for i, e := range exponents {
		if h.Counts[e] != want[e] {
			t.Errorf("%d numbers from 2^%d, want %d", h.Counts[e], e, want[e])
		}
		if i > 0 && exponents[i-1] >= e {
			t.Errorf("exponents are %v", exponents)
		}
	}
}

// Shares by the thresholds that follow from each format's definition.
func TestShareOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := []float32{0, float32(math.NaN()), float32(math.Inf(1))}
	for range 10_000 {
		values = append(values, float32(math.Ldexp(r.NormFloat64(), r.IntN(80)-40)))
	}
	for _, f := range []precision.Format{precision.FP16, precision.BF16, precision.E5M2, precision.E4M3} {
		for _, scale := range []float64{1, 1024, 0x1p-20} {
			var want precision.Fractions
			n := 0.0
			beyond := f.Largest() * (1 + f.Epsilon()/2/(2-f.Epsilon())) // half a last place
			if f == precision.E4M3 {
				beyond = 464
			}
			for _, v := range values[3:] {
				x := math.Abs(float64(v)) * scale
				n++
				switch {
				case x <= f.SmallestSubnormal()/2:
					want.Underflow++
				case x < f.SmallestNormal()-f.SmallestSubnormal()/2:
					want.Subnormal++
				case x > beyond:
					want.Overflow++
				}
			}
			got := precision.FractionsOf(values, f, scale)
			for _, pair := range [][2]float64{{got.Underflow, want.Underflow / n}, {got.Subnormal, want.Subnormal / n},
				{got.Overflow, want.Overflow / n}} {
				if math.Abs(pair[0]-pair[1]) > 1e-12 {
					t.Errorf("%s times %g: shares %+v, want %+v of %g", f, scale, got, want, n)
				}
			}
		}
	}
	if got := precision.FractionsOf([]float32{0}, precision.FP16, 1); got != (precision.Fractions{}) {
		t.Errorf("zeros have shares %+v", got)
	}
}
