package residual

import (
	"sync"

	"github.com/shardbook/shardbook/lib/precision"
)

// half is a type of 16 bits.
type half struct {
	format  precision.Format
	numbers [1 << 16]float32 // by their bits
}

var (
	bfloat16 = sync.OnceValue(func() *half { return newHalf(precision.BF16) })
	float16  = sync.OnceValue(func() *half { return newHalf(precision.FP16) })
)

func newHalf(f precision.Format) *half {
	h := &half{format: f}
	for bits := range h.numbers {
		h.numbers[bits] = float32(f.Decode(uint32(bits)))
	}
	return h
}

// bits are those of the nearest number of the type, and in a tie of the even one.
func (h *half) bits(x float32) uint16 { return uint16(h.format.Encode(float64(x))) }
