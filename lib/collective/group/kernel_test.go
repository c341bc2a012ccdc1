package group

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// TestReduce compares reductions with the reference, bit for bit, for all types, reductions and numbers of ranks, at
// lengths around those that instructions and strips take: numbers whose sums must be rounded, and special values.
func TestReduce(t *testing.T) {
	inf, nan, zero := math.Inf(1), math.NaN(), math.Copysign(0, -1)
	floats := []float64{0, zero, inf, -inf, nan, 1e-45, -1e-40, math.MaxFloat32, 1, -1}
	checkReduce[float32](t, floats)
	checkReduce[float64](t, floats)
	checkReduce[bfloat16.BFloat16](t, floats)
	checkReduce[float16.Float16](t, floats)
	checkReduce[int32](t, []float64{1 << 20, -1 << 20, 3}) // whose products wrap
	checkReduce[int64](t, []float64{1 << 40, -1 << 40, 3})
	checkReduce[uint8](t, []float64{255, 0, 7})
}

func checkReduce[T Element](t *testing.T, special []float64) {
	rng := rand.New(rand.NewPCG(1, 1))
	lengths := []int{0, 1, 15, 16, 31, 32, 33, 63, 100, 200, strip - 1, strip + 40}
	for ranks := 1; ranks <= 9; ranks++ {
		for op := Sum; op <= Min; op++ {
			if op == Mean && TypeOf[T]() >= Int32 {
				continue
			}
			length := lengths[rng.IntN(len(lengths))]
			srcs := make([][]T, ranks)
			for r := range srcs {
				srcs[r] = randomValues[T](rng, 7+length)[rng.IntN(8):][:length:length] // of any alignment
				for i := range srcs[r] {
					if rng.IntN(10) == 0 {
						srcs[r][i] = fromNumber[T](special[rng.IntN(len(special))])
					}
				}
			}
			got := [][]T{make([]T, length+1), make([]T, length+1)}
			reduce(TypeOf[T](), op, addresses(got), addresses(srcs), length)
			for i := range length + 1 {
				var want T
				if i < length {
					want = reduceColumn(op, srcs, i)
				}
				for _, g := range got {
					if !alike(g[i], want) {
						t.Fatalf("%v of %v, %d ranks, element %d of %d: %v, want %v", op, TypeOf[T](), ranks, i, length,
							g[i], want)
					}
				}
			}
		}
	}
}

func addresses[T Element](arrays [][]T) (p pointers) {
	for _, a := range arrays {
		p = append(p, unsafe.Pointer(unsafe.SliceData(a)))
	}
	return p
}

// TestMove copies with both kinds of stores, at all lengths and alignments.
func TestMove(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for length := range 700 {
		for _, much := range []bool{false, true} {
			src := randomValues[uint8](rng, length+64)
			dst := make([]uint8, length+64)
			from, to := rng.IntN(33), rng.IntN(32)
			move(unsafe.Pointer(&dst[to]), unsafe.Pointer(&src[from]), length, much)
			want := make([]uint8, length+64)
			copy(want[to:], src[from:from+length])
			if string(dst) != string(want) {
				t.Fatalf("%d bytes from offset %d to %d, much %v: the wrong bytes", length, from, to, much)
			}
		}
	}
}

// TestHalves compares the 16-bit conversions with the definitions: every one of the 2^16 values wide, and around each,
// and halfway to the next, narrow.
func TestHalves(t *testing.T) {
	for _, f := range []format{bfloat16Format, float16Format} {
		for b := range 1 << 16 {
			bits := uint16(b)
			want := f.value(bits)
			// 16 are converted by instructions, where there are any, and the last in Go.
			wides := make([]float32, 17)
			widen(f.kind, wides, slices.Repeat([]uint16{bits}, 17))
			for _, wide := range wides[15:] {
				if !alike(float64(wide), want) {
					t.Fatalf("bits %#x of %v widen to %v, want %v", bits, f.kind, wide, want)
				}
			}
			wide, inf := wides[16], float32(math.Inf(1))
			next := f.value(bits + 1)
			if math.IsInf(next, 0) && !math.IsInf(want, 0) {
				next = math.Copysign(math.Ldexp(1, 2-f.least), want) // from halfway there on, numbers are infinite
			}
			half := float32((want + next) / 2)
			for _, x := range []float32{wide, math.Nextafter32(wide, 0), math.Nextafter32(wide, inf), half,
				math.Nextafter32(half, 0), math.Nextafter32(half, inf)} {
				narrowed := make([]uint16, 17)
				narrow(f.kind, narrowed, slices.Repeat([]float32{x}, 17))
				for _, got := range narrowed[15:] {
					if y, want := f.value(got), f.round(float64(x)); !alike(y, want) {
						t.Fatalf("%v narrows to bits %#x of %v, which are %v, want %v", x, got, f.kind, y, want)
					}
				}
				if x != x && narrowed[0] != narrowed[16] {
					t.Fatalf("a NaN of bits %#x narrows to bits %#x or %#x of %v", math.Float32bits(x), narrowed[0],
						narrowed[16], f.kind)
				}
			}
		}
	}
}
