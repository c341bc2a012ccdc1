package residual

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/lib/precision"
)

// The bits are those of the codec that knows all formats: around every number of the type, in every tie, and of any float32.
func TestHalfBits(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		of     *half
		format precision.Format
	}{{bfloat16(), precision.BF16}, {float16(), precision.FP16}} {
		compare := func(x float32) {
			if got, want := c.of.bits(x), uint16(c.format.Encode(float64(x))); got != want {
				t.Fatalf("%s: %g (%x) has the bits %x, want %x", c.format.Name, x, math.Float32bits(x), got, want)
			}
		}
		for i, x := range c.of.numbers {
			compare(x)
			if i+1 < len(c.of.numbers) {
				tie := (x + c.of.numbers[i+1]) / 2
				for _, near := range []float32{tie, math.Nextafter32(tie, 0), math.Nextafter32(tie, 1e38)} {
					compare(near)
				}
			}
			compare(math.Float32frombits(random.Uint32()))
		}
	}
}
