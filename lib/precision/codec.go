package precision

import "math"

// One codec serves all formats. GoMLX's own conversions for the two half types flush FP16's subnormal numbers to 0,
// turn BF16's NaNs with clear upper mantissa bits into infinities, round twice on the way from float64, and know no
// other formats.

// Round returns the nearest number of the format, with ties to even. Small numbers lose precision gradually down to ±0,
// numbers that are too large become what f.Overflow says, and zeros and NaNs keep their sign.
func (f Format) Round(x float64) float64 { return f.round(x, math.RoundToEven) }

// RoundStochastic rounds x to one of the two numbers of the format around it (Gupta et al. 2015, "Deep Learning with
// Limited Numerical Precision", §3). u is drawn uniformly from [0,1); the one farther from zero is chosen with the
// probability that makes the mean x. Numbers beyond the largest are rounded by Round, so that no draw makes an infinity
// of what Round does not.
func (f Format) RoundStochastic(x, u float64) float64 {
	if math.Abs(x) > f.Largest() {
		return f.Round(x)
	}
	return f.round(x, func(n float64) float64 {
		down := math.Floor(n)
		if u < n-down {
			down++
		}
		return down
	})
}

// round rounds x to the format; toInteger rounds its magnitude in units of the last place.
func (f Format) round(x float64, toInteger func(float64) float64) float64 {
	switch {
	case math.IsNaN(x) && f.Exponent == 0:
		return 0
	case math.IsNaN(x):
		return x
	case math.IsInf(x, 0):
		return f.overflow(x)
	}
	unit := f.unit(x)
	// Both scalings are exact: the first result has bits before the point, the second fits a float64.
	r := math.Copysign(math.Ldexp(toInteger(math.Ldexp(math.Abs(x), -unit)), unit), x)
	if math.Abs(r) > f.Largest() {
		return f.overflow(x)
	}
	if f.Exponent == 0 {
		return r + 0 // integers have one zero
	}
	return r
}

// unit is the binary exponent of the last place of numbers around x.
func (f Format) unit(x float64) int {
	least := 1 - f.Bias()
	if f.Exponent == 0 || x == 0 {
		return least - f.Mantissa
	}
	_, e := math.Frexp(x) // ½ <= |x|/2ᵉ < 1
	return max(e-1, least) - f.Mantissa
}

// overflow returns what an x that is too large becomes.
func (f Format) overflow(x float64) float64 {
	switch f.Overflow {
	case ToNaN:
		return math.Copysign(math.NaN(), x)
	case ToLargest:
		return math.Copysign(f.Largest(), x)
	}
	return math.Inf(int(math.Copysign(1, x)))
}

// Encode returns the bits of [Format.Round](x) in the lowest f.Bits() bits: sign, exponent and mantissa from the top,
// or two's complement for integers. NaN is the quiet one with x's sign.
func (f Format) Encode(x float64) uint32 {
	r := f.Round(x)
	if f.Exponent == 0 {
		return uint32(int32(r)) & (1<<f.Bits() - 1)
	}
	var bits uint32
	switch top := uint32(1)<<f.Exponent - 1; {
	case math.IsNaN(r) && f.NoInfinities:
		bits = top<<f.Mantissa | (1<<f.Mantissa - 1)
	case math.IsNaN(r):
		bits = top<<f.Mantissa | 1<<(f.Mantissa-1)
	case math.IsInf(r, 0):
		bits = top << f.Mantissa
	default:
		// In units of the last place: below 2^Mantissa only in the lowest binade, whose exponent is 0.
		unit := f.unit(r)
		bits = uint32(math.Ldexp(math.Abs(r), -unit)) + uint32(unit+f.Mantissa-1+f.Bias())<<f.Mantissa
	}
	if math.Signbit(r) {
		bits |= 1 << (f.Bits() - 1)
	}
	return bits
}

// Decode returns the number that the lowest f.Bits() bits represent, exactly.
func (f Format) Decode(bits uint32) float64 {
	if f.Exponent == 0 {
		unused := 32 - f.Bits()
		return float64(int32(bits<<unused) >> unused)
	}
	mantissa := bits & (1<<f.Mantissa - 1)
	top := uint32(1)<<f.Exponent - 1
	exponent := bits >> f.Mantissa & top
	var x float64
	switch {
	case exponent == top && !f.NoInfinities && mantissa == 0:
		x = math.Inf(1)
	case exponent == top && (!f.NoInfinities || mantissa == 1<<f.Mantissa-1):
		x = math.NaN()
	case exponent == 0:
		x = math.Ldexp(float64(mantissa), 1-f.Bias()-f.Mantissa)
	default:
		x = math.Ldexp(float64(mantissa|1<<f.Mantissa), int(exponent)-f.Bias()-f.Mantissa)
	}
	if bits>>(f.Bits()-1)&1 == 1 {
		return math.Copysign(x, -1)
	}
	return x
}
