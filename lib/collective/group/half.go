package group

import "math"

// widen converts numbers of 16 bits to float32.
func widen(t Type, dst []float32, src []uint16) {
	done := widenFast(t, dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		if t == BFloat16 {
			dst[i] = math.Float32frombits(uint32(x) << 16)
			continue
		}
		sign, rest := uint32(x&0x8000)<<16, uint32(x&0x7fff)<<13
		if x&0x7c00 == 0x7c00 { // an infinity or a NaN
			dst[i] = math.Float32frombits(sign | rest | 0x7f800000)
			continue
		}
		// The exponent, as float32 reads it, is 112 too small. A multiplication mends that, also for subnormal numbers.
		dst[i] = math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest)*0x1p112))
	}
}

// narrow rounds to numbers of 16 bits. The conversions of the packages bfloat16 and float16 are not used: the one makes
// an infinity of some NaNs, the other zero of most subnormal numbers.
func narrow(t Type, dst []uint16, src []float32) {
	done := narrowFast(t, dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		bits := math.Float32bits(x)
		if t == Float16 {
			dst[i] = float16Bits(bits)
		} else if x != x {
			dst[i] = uint16(bits>>16 | 0x40) // stays a NaN
		} else {
			dst[i] = uint16((bits + 0x7fff + bits>>16&1) >> 16)
		}
	}
}

// float16Bits rounds a float32, given as bits.
func float16Bits(bits uint32) uint16 {
	sign, rest := uint16(bits>>16)&0x8000, bits&0x7fffffff
	var half uint32
	switch {
	case rest > 0x7f800000: // a NaN stays one
		half = 0x7e00 | rest>>13&0x3ff
	case rest >= 0x477ff000: // 65520 and more round to infinity
		half = 0x7c00
	case rest < 0x38800000: // less than 2^-14 is subnormal: a whole number of 2^-24
		half = math.Float32bits(math.Float32frombits(rest)+0.5) - math.Float32bits(0.5)
	default:
		half = (rest - 112<<23 + 0xfff + rest>>13&1) >> 13
	}
	return sign | uint16(half)
}
