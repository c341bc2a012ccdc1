package precision

import (
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

// Add counts numbers, of a type that has them exactly: float32 or float64.
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

// Exponents returns the exponents counted, from the least.
func (h *Histogram) Exponents() []int {
	exponents := make([]int, 0, len(h.Counts))
	for e := range h.Counts {
		exponents = append(exponents, e)
	}
	slices.Sort(exponents)
	return exponents
}

// Share is what part of some numbers, each from 0 to 1, meets a fate in a format.
type Share struct {
	Underflow float64 // becomes 0
	Subnormal float64 // becomes a subnormal number, of less than full precision
	Overflow  float64 // lies beyond the largest number, even when rounded
}

// ShareOf rounds the finite numbers other than 0, times a scale, to a format and returns their fates. Where there are
// none, so are all parts.
func ShareOf[T float32 | float64](values []T, f Format, scale float64) Share {
	f.Overflow = ToInfinity // to tell what is too large from what is as large as can be
	var s Share
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
		s = Share{s.Underflow / n, s.Subnormal / n, s.Overflow / n}
	}
	return s
}
