package group

import "math"

// widen converts numbers of 16 bits to float32.
func widen(t Type, dst []float32, src []uint16) {
	if t == BFloat16 {
		widenBFloat16(dst, src)
	} else {
		widenFloat16(dst, src)
	}
}

// narrow rounds to numbers of 16 bits.
func narrow(t Type, dst []uint16, src []float32) {
	if t == BFloat16 {
		narrowBFloat16(dst, src)
	} else {
		narrowFloat16(dst, src)
	}
}

// The conversions of the packages bfloat16 and float16 are not used to narrow: the
// one makes an infinity of some NaNs, the other zero of most subnormal numbers.

func widenBFloat16(dst []float32, src []uint16) {
	done := widenBFloat16Fast(dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		dst[i] = math.Float32frombits(uint32(x) << 16)
	}
}

func narrowBFloat16(dst []uint16, src []float32) {
	done := narrowBFloat16Fast(dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		bits := math.Float32bits(x)
		if x != x {
			dst[i] = uint16(bits>>16 | 0x40) // stays a NaN
			continue
		}
		dst[i] = uint16((bits + 0x7fff + bits>>16&1) >> 16)
	}
}

func widenFloat16(dst []float32, src []uint16) {
	done := widenFloat16Fast(dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		sign, rest := uint32(x&0x8000)<<16, uint32(x&0x7fff)<<13
		if x&0x7c00 == 0x7c00 { // an infinity or a NaN
			dst[i] = math.Float32frombits(sign | rest | 0x7f800000)
			continue
		}
		// The exponent, as float32 reads it, is 112 too small. A multiplication mends that for subnormal numbers too.
		dst[i] = math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest)*0x1p112))
	}
}

func narrowFloat16(dst []uint16, src []float32) {
	done := narrowFloat16Fast(dst, src)
	src, dst = src[done:], dst[done:len(src)]
	for i, x := range src {
		bits := math.Float32bits(x)
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
		dst[i] = uint16(sign | uint16(half))
	}
}
