package precision

import (
	"maps"
	"math"
	"slices"
)

// Histogram counts numbers by their binary exponent, as in figure 3 of Micikevicius et al. 2018, "Mixed Precision
// Training". The zero Histogram is empty and ready to use.
type Histogram struct {
	Counts    map[int]int // of magnitudes from 2ᵉ up to but not 2ᵉ⁺¹, by e
	Zeros     int
	NonFinite int
}

// Add counts numbers.
func Add[T float32 | float64](h *Histogram, values []T) {
	if h.Counts == nil {
		h.Counts = map[int]int{}
	}
	for _, v := range values {
		switch x := float64(v); {
		case x == 0:
			h.Zeros++
		case math.IsNaN(x) || math.IsInf(x, 0):
			h.NonFinite++
		default:
			_, e := math.Frexp(x)
			h.Counts[e-1]++
		}
	}
}

// Exponents returns the exponents that were counted, in ascending order.
func (h *Histogram) Exponents() []int { return slices.Sorted(maps.Keys(h.Counts)) }

// Fractions is which fractions of some numbers, from 0 to 1, a format can not represent well.
type Fractions struct {
	Underflow float64 // become 0
	Subnormal float64 // become subnormal, with less than full precision
	Overflow  float64 // are beyond the largest number after rounding
}

// FractionsOf rounds the finite nonzero numbers, times a scale, to a format and returns the fractions; 0 if there are
// none.
func FractionsOf[T float32 | float64](values []T, f Format, scale float64) Fractions {
	f.Overflow = ToInfinity // to tell overflow from the largest number
	var s Fractions
	n := 0.0
	for _, v := range values {
		x := float64(v)
		if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
			continue
		}
		n++
		switch r := math.Abs(f.Round(x * scale)); {
		case r == 0:
			s.Underflow++
		case r < f.SmallestNormal():
			s.Subnormal++
		case math.IsInf(r, 1):
			s.Overflow++
		}
	}
	if n > 0 {
		s = Fractions{s.Underflow / n, s.Subnormal / n, s.Overflow / n}
	}
	return s
}
