package group

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// TestFastIsPortable compares the instructions for one machine with plain Go, bit for
// bit, at all lengths, offsets and numbers of ranks, special values included.
func TestFastIsPortable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	special := []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-45, -1e-40,
		math.MaxFloat32}
	fast := 0
	for ranks := 1; ranks <= 9; ranks++ {
		for length := 0; length < 200; length++ {
			for _, op := range []ReduceOp{Sum, Mean} {
				offset := rng.IntN(8)
				srcs := make([][]float32, ranks)
				for r := range srcs {
					srcs[r] = randomValues[float32](rng, offset+length)[offset:]
					for i := range srcs[r] {
						if rng.IntN(10) == 0 {
							srcs[r][i] = special[rng.IntN(len(special))]
						}
					}
				}
				want := make([]float32, length)
				reduceAs[float32](op, addresses([][]float32{want}), addresses(srcs), 0, length)
				got := [][]float32{make([]float32, length+1), make([]float32, length+1)}
				done := reduceFast(op, addresses(got), addresses(srcs), length)
				fast += done
				for _, g := range got {
					for i := range g {
						if i < done && math.Float32bits(g[i]) != math.Float32bits(want[i]) {
							t.Fatalf("%v of %d ranks, element %d of %d: %x, want %x", op, ranks, i, length, g[i],
								want[i])
						}
						if i >= done && g[i] != 0 {
							t.Fatalf("%v of %d ranks wrote element %d of %d", op, ranks, i, done)
						}
					}
				}
			}
		}
	}
	t.Logf("%d elements the fast way", fast)
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

// TestHalves compares the 16-bit conversions with tables of all values: every one of
// the 2^16 wide, and around each, and halfway to the next, narrow.
func TestHalves(t *testing.T) {
	for b := range 1 << 16 {
		checkHalf(t, BFloat16, bfloat16Table, uint16(b))
		checkHalf(t, Float16, float16Table, uint16(b))
	}
}

func checkHalf(t *testing.T, kind Type, table table, bits uint16) {
	t.Helper()
	// 16 are converted by instructions, where there are any, and the last in Go.
	wides := make([]float32, 17)
	widen(kind, wides, slices.Repeat([]uint16{bits}, 17))
	magnitude, infinity := bits&0x7fff, uint16(len(table)-1)
	around := []float32{}
	for _, wide := range wides[15:] {
		x := float64(wide)
		switch {
		case magnitude > infinity:
			if !math.IsNaN(x) {
				t.Fatalf("bits %#x of %v widen to %v, want NaN", bits, kind, x)
			}
		case magnitude == infinity:
			if !math.IsInf(x, 0) || math.Signbit(x) != (bits>>15 == 1) {
				t.Fatalf("bits %#x of %v widen to %v, want an infinity", bits, kind, x)
			}
		default:
			want := table[magnitude]
			if bits>>15 == 1 {
				want = math.Copysign(want, -1)
			}
			if x != want || math.Signbit(x) != math.Signbit(want) {
				t.Fatalf("bits %#x of %v widen to %v, want %v", bits, kind, x, want)
			}
		}
		around = append(around, wide, math.Nextafter32(wide, 0), math.Nextafter32(wide, float32(math.Inf(1))))
		if magnitude < infinity {
			half := float32(math.Copysign((table[magnitude]+table[magnitude+1])/2, x))
			around = append(around, half, math.Nextafter32(half, 0), math.Nextafter32(half, float32(math.Inf(1))))
		}
	}
	for _, x := range around {
		narrowed := make([]uint16, 17)
		narrow(kind, narrowed, slices.Repeat([]float32{x}, 17))
		for _, got := range narrowed[15:] {
			if x != x && got&0x7fff > infinity {
				continue
			}
			if want := table.round(float64(x)); got != want {
				t.Fatalf("%v narrows to bits %#x of %v, want %#x", x, got, kind, want)
			}
		}
		if x != x && narrowed[0] != narrowed[16] {
			t.Fatalf("a NaN of bits %#x narrows to bits %#x or %#x of %v", math.Float32bits(x), narrowed[0],
				narrowed[16], kind)
		}
	}
}

// TestNaN: a NaN anywhere makes the result NaN, for every reduction and float type.
func TestNaN(t *testing.T) {
	for op := Sum; op <= Min; op++ {
		for at := range 3 {
			f32 := [][]float32{make([]float32, 40), make([]float32, 40), make([]float32, 40)}
			f64 := [][]float64{{1}, {2}, {3}}
			bf16 := [][]bfloat16.BFloat16{{1}, {2}, {3}}
			f16 := [][]float16.Float16{{1}, {2}, {3}}
			f32[at][0], f32[at][39] = float32(math.NaN()), float32(math.NaN())
			f64[at][0] = math.NaN()
			bf16[at][0] = 0xff81
			f16[at][0] = 0x7c01
			reduce(Float32, op, addresses(f32), addresses(f32), 40)
			reduce(Float64, op, addresses(f64), addresses(f64), 1)
			reduce(BFloat16, op, addresses(bf16), addresses(bf16), 1)
			reduce(Float16, op, addresses(f16), addresses(f16), 1)
			for r := range 3 {
				got := []float64{
					float64(f32[r][0]),
					float64(f32[r][39]),
					f64[r][0],
					number64(bf16[r][0]),
					number64(f16[r][0]),
				}
				for i, x := range got {
					if !math.IsNaN(x) {
						t.Errorf("%v with a NaN of rank %d: result %d is %v", op, at, i, x)
					}
				}
			}
		}
	}
}

// TestZeros: +0 is more than -0, in either order.
func TestZeros(t *testing.T) {
	minus := math.Copysign(0, -1)
	for _, values := range [][2]float64{{0, minus}, {minus, 0}} {
		for op, negative := range map[ReduceOp]bool{Max: false, Min: true} {
			t.Run(fmt.Sprint(op, values), func(t *testing.T) {
				srcs := [][]float64{{values[0]}, {values[1]}}
				reduce(Float64, op, addresses(srcs), addresses(srcs), 1)
				if math.Signbit(srcs[0][0]) != negative {
					t.Errorf("%v", srcs[0][0])
				}
			})
		}
	}
}
