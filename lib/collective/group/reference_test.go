package group

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// The reference is as dumb as can be. Float types are computed in float64 and rounded to float32 after every step
// (which is exact: float64 has more than twice the digits), the 16-bit types rounded once more.

// reduceColumn is the reduction of element i of all ranks, in their order.
func reduceColumn[T Element](op ReduceOp, ranks [][]T, i int) T {
	if _, isInt := any(ranks[0][i]).(int64); isInt {
		acc := any(ranks[0][i]).(int64)
		for _, x := range ranks[1:] {
			b := any(x[i]).(int64)
			switch op {
			case Sum:
				acc += b
			case Product:
				acc *= b
			case Max:
				acc = max(acc, b)
			case Min:
				acc = min(acc, b)
			}
		}
		return any(acc).(T)
	}
	acc := number64(ranks[0][i])
	for _, x := range ranks[1:] {
		b := number64(x[i])
		switch op {
		case Sum, Mean:
			acc += b
		case Product:
			acc *= b
		case Max:
			acc = max(acc, b)
		case Min:
			acc = min(acc, b)
		}
		acc = roundStep[T](acc)
	}
	if op == Mean {
		acc = roundStep[T](acc / float64(len(ranks)))
	}
	return fromNumber[T](acc)
}

func number64[T Element](x T) float64 {
	switch x := any(x).(type) {
	case float32:
		return float64(x)
	case float64:
		return x
	case bfloat16.BFloat16:
		return bfloat16Format.value(uint16(x))
	case float16.Float16:
		return float16Format.value(uint16(x))
	case int32:
		return float64(x)
	case int64:
		return float64(x) // at most 2^53 in these tests
	case uint8:
		return float64(x)
	}
	panic("no such type")
}

// roundStep rounds an intermediate result as the type in which it is reduced does.
func roundStep[T Element](x float64) float64 {
	switch any(*new(T)).(type) {
	case float64:
		return x
	case int32:
		return float64(int32(int64(x)))
	case uint8:
		return float64(uint8(int64(x)))
	}
	return float64(float32(x))
}

func fromNumber[T Element](x float64) T {
	switch any(*new(T)).(type) {
	case float32:
		return any(float32(x)).(T)
	case float64:
		return any(x).(T)
	case bfloat16.BFloat16:
		return any(bfloat16.FromBits(narrowed(BFloat16, x))).(T)
	case float16.Float16:
		return any(float16.FromBits(narrowed(Float16, x))).(T)
	case int32:
		return any(int32(x)).(T)
	case int64:
		return any(int64(x)).(T)
	}
	return any(uint8(int64(x))).(T)
}

// narrowed is a float32 in 16 bits, which TestHalves checks.
func narrowed(t Type, x float64) uint16 {
	bits := make([]uint16, 1)
	narrow(t, bits, []float32{float32(x)})
	return bits[0]
}

// format is a 16-bit float: its digits after the point, and the exponent of subnormal numbers.
type format struct {
	kind          Type
	digits, least int
}

var bfloat16Format, float16Format = format{BFloat16, 7, -126}, format{Float16, 10, -14}

// value is the definition of the format.
func (f format) value(bits uint16) float64 {
	sign := 1 - 2*float64(bits>>15)
	exponent, mantissa := int(bits&0x7fff>>f.digits), float64(bits&(1<<f.digits-1))
	switch {
	case exponent == 1<<(15-f.digits)-1 && mantissa == 0:
		return math.Inf(int(sign))
	case exponent == 1<<(15-f.digits)-1:
		return math.NaN()
	case exponent == 0:
		return math.Copysign(math.Ldexp(mantissa, f.least-f.digits), sign)
	}
	return math.Copysign(math.Ldexp(mantissa+float64(int(1)<<f.digits), exponent-1+f.least-f.digits), sign)
}

// round is the nearest value, the even one in a tie.
func (f format) round(x float64) float64 {
	_, exponent := math.Frexp(x) // |x| is in [2^(exponent-1), 2^exponent)
	step := math.Ldexp(1, max(exponent-1, f.least)-f.digits)
	rounded := math.RoundToEven(x/step) * step
	if math.Abs(rounded) >= math.Ldexp(1, 2-f.least) {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return rounded
}

// randomValues are small numbers, some with digits that sums must round.
func randomValues[T Element](rng *rand.Rand, n int) []T {
	values := make([]T, n)
	for i := range values {
		switch any(values[i]).(type) {
		case int32, int64:
			values[i] = fromNumber[T](float64(rng.IntN(19) - 9))
		case uint8:
			values[i] = fromNumber[T](float64(rng.IntN(256)))
		default:
			values[i] = fromNumber[T](rng.NormFloat64())
		}
	}
	return values
}

// alike reports whether two numbers are the same, and zeros of the same sign. All NaNs are alike.
func alike[T Element](a, b T) bool {
	x, y := number64(a), number64(b)
	return a == b && math.Signbit(x) == math.Signbit(y) || x != x && y != y
}

// same says where the ranks' results differ from what is wanted.
func same[T Element](got, want [][]T) error {
	for r := range want {
		if len(got[r]) != len(want[r]) {
			return fmt.Errorf("rank %d has %d elements, want %d", r, len(got[r]), len(want[r]))
		}
		for i := range want[r] {
			if got[r][i] != want[r][i] {
				return fmt.Errorf("rank %d, element %d is %v, want %v", r, i, got[r][i], want[r][i])
			}
		}
	}
	return nil
}
