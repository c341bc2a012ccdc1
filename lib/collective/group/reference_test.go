package group

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// The reference: one operation on all ranks' data at once, as dumb as can be. Float types are computed in float64 and
// rounded to float32 after every step (which is exact: float64 has more than twice the digits), the 16-bit types
// rounded once more by searching a table of all their values.

// reference returns what each rank's out holds after the operation.
func reference[T Element](kind Kind, op ReduceOp, root int, ins, outs [][]T, counts [][]int) [][]T {
	n := len(ins)
	want := make([][]T, n)
	for r := range want {
		want[r] = append([]T(nil), outs[r]...)
	}
	reduced := func() []T {
		result := make([]T, len(ins[0]))
		for i := range result {
			var column []T
			for r := range n {
				column = append(column, ins[r][i])
			}
			result[i] = reduceColumn(op, column)
		}
		return result
	}
	joined := func() (all []T) {
		for r := range n {
			all = append(all, ins[r]...)
		}
		return all
	}
	switch kind {
	case KindBroadcast:
		for r := range n {
			want[r] = ins[root]
		}
	case KindReduce:
		want[root] = reduced()
	case KindAllReduce:
		for r := range n {
			want[r] = reduced()
		}
	case KindGather:
		want[root] = joined()
	case KindAllGather:
		for r := range n {
			want[r] = joined()
		}
	case KindScatter:
		part := len(ins[root]) / n
		for r := range n {
			want[r] = ins[root][r*part : (r+1)*part]
		}
	case KindReduceScatter:
		all := reduced()
		part := len(all) / n
		for r := range n {
			want[r] = all[r*part : (r+1)*part]
		}
	case KindAllToAll:
		for to := range n {
			want[to] = nil
			for from := range n {
				skip := 0
				for q := range to {
					skip += counts[from][q]
				}
				want[to] = append(want[to], ins[from][skip:skip+counts[from][to]]...)
			}
		}
	case KindSend: // to the next rank
		for r := range n {
			want[(r+1)%n] = ins[r]
		}
	}
	return want
}

func reduceColumn[T Element](op ReduceOp, column []T) T {
	if _, isInt := any(column[0]).(int64); isInt {
		acc := int64(number64(column[0]))
		for _, x := range column[1:] {
			b := int64(number64(x))
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
	acc := number64(column[0])
	for _, x := range column[1:] {
		b := number64(x)
		switch op {
		case Sum, Mean:
			acc += b
		case Product:
			acc *= b
		case Max:
			acc = math.Max(acc, b)
		case Min:
			acc = math.Min(acc, b)
		}
		acc = roundStep[T](acc)
	}
	if op == Mean {
		acc = roundStep[T](acc / float64(len(column)))
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
		return float64(x.Float32())
	case float16.Float16:
		return float64(x.Float32())
	case int32:
		return float64(x)
	case int64:
		return float64(x) // small in these tests
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
		return any(bfloat16.FromBits(bfloat16Table.round(x))).(T)
	case float16.Float16:
		return any(float16.FromBits(float16Table.round(x))).(T)
	case int32:
		return any(int32(x)).(T)
	case int64:
		return any(int64(x)).(T)
	}
	return any(uint8(int64(x))).(T)
}

// table has all finite positive values of a 16-bit type, in order: number i has the
// bits i. The one after the last stands for infinity.
type table []float64

var (
	bfloat16Table = newTable(func(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }, 0x7f80,
		math.Ldexp(1, 128))
	float16Table = newTable(float16Value, 0x7c00, 65536)
)

// float16Value is the definition of the format.
func float16Value(bits uint16) float64 {
	exponent, mantissa := int(bits>>10&31), float64(bits&1023)
	if exponent == 0 {
		return math.Ldexp(mantissa, -24)
	}
	return math.Ldexp(1024+mantissa, exponent-25)
}

func newTable(value func(uint16) float64, infinity uint16, next float64) table {
	t := make(table, infinity+1)
	for b := range infinity {
		t[b] = value(b)
	}
	t[infinity] = next
	return t
}

// round returns the bits of the nearest value, the even one in a tie.
func (t table) round(x float64) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign = 0x8000
	}
	x = math.Abs(x)
	if math.IsNaN(x) {
		return 0x7fff
	}
	above := sort.SearchFloat64s(t, x)
	if above == len(t) {
		above-- // more than the largest is infinity
	}
	if above == 0 || t[above] == x {
		return sign | uint16(above)
	}
	below := above - 1
	switch low, high := x-t[below], t[above]-x; {
	case low < high || low == high && below%2 == 0:
		return sign | uint16(below)
	}
	return sign | uint16(above)
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

// same says where the ranks' results differ from what is wanted. Values are compared
// as bits, by way of == and the sign of zero.
func same[T Element](got, want [][]T) error {
	for r := range want {
		if len(got[r]) != len(want[r]) {
			return fmt.Errorf("rank %d has %d elements, want %d", r, len(got[r]), len(want[r]))
		}
		for i := range want[r] {
			if got[r][i] != want[r][i] || math.Signbit(number64(got[r][i])) != math.Signbit(number64(want[r][i])) {
				return fmt.Errorf("rank %d, element %d is %v, want %v", r, i, got[r][i], want[r][i])
			}
		}
	}
	return nil
}
