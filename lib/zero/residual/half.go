package residual

import (
	"math"
	"sync"

	"github.com/shardbook/shardbook/lib/precision"
)

// half is a type of 16 bits.
type half struct {
	numbers [1 << 16]float32       // by their bits
	bits    func(x float32) uint16 // of the nearest number, and in a tie of the even one
}

var (
	bfloat16 = sync.OnceValue(func() *half { return newHalf(precision.BF16, bfloat16Bits) })
	float16  = sync.OnceValue(func() *half { return newHalf(precision.FP16, float16Bits) })
)

func newHalf(f precision.Format, bits func(x float32) uint16) *half {
	h := &half{bits: bits}
	for i := range h.numbers {
		h.numbers[i] = float32(f.Decode(uint32(i)))
	}
	return h
}

// These are [precision.Format.Encode] for one type each, and so faster. The packages bfloat16 and float16 make an
// infinity of some NaNs, and zeros of most subnormal numbers.

func bfloat16Bits(x float32) uint16 {
	bits := math.Float32bits(x)
	if x != x {
		return uint16(bits>>16&0x8000 | 0x7fc0)
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func float16Bits(x float32) uint16 {
	bits := math.Float32bits(x)
	sign, size := uint16(bits>>16)&0x8000, bits&^(1<<31)
	switch {
	case x != x:
		return sign | 0x7e00
	case size >= 0x477ff000: // 65520, which is as near to infinity, and more
		return sign | 0x7c00
	case size < 0x38800000: // subnormal: the sum's last bit counts 2⁻²⁴, as the result's does
		return sign | uint16(math.Float32bits(math.Float32frombits(size)+0.5)-math.Float32bits(0.5))
	}
	return sign | uint16((size-112<<23+0xfff+size>>13&1)>>13)
}
