package precision_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/precision"
)

// Micikevicius et al. 2022, table 1, for the 8-bit formats; IEEE 754-2019, table 3.5, for FP16 and FP32; the others
// follow from FP32, whose exponents they have.
var properties = []struct {
	f                                   precision.Format
	bits, bias                          int
	largest, normal, subnormal, epsilon float64
}{
	{precision.FP32, 32, 127, math.MaxFloat32, 0x1p-126, math.SmallestNonzeroFloat32, 0x1p-23},
	{precision.TF32, 19, 127, 0x1.ffcp127, 0x1p-126, 0x1p-136, 0x1p-10},
	{precision.BF16, 16, 127, 0x1.fep127, 0x1p-126, 0x1p-133, 0x1p-7},
	{precision.FP16, 16, 15, 65504, 0x1p-14, 0x1p-24, 0x1p-10},
	{precision.E5M2, 8, 15, 57344, 0x1p-14, 0x1p-16, 0.25},
	{precision.E4M3, 8, 7, 448, 0x1p-6, 0x1p-9, 0.125},
	{precision.INT8, 8, -6, 127, 1, 1, 1},
}

func TestProperties(t *testing.T) {
	for i, p := range properties {
		f := p.f
		if f != precision.Formats()[i] {
			t.Errorf("format %d is %s, want %s", i, precision.Formats()[i], f)
		}
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
		if f.Bits() != p.bits || f.Bias() != p.bias || f.Largest() != p.largest || f.SmallestNormal() != p.normal ||
			f.SmallestSubnormal() != p.subnormal || f.Epsilon() != p.epsilon {
			t.Errorf("%s: %d bits, bias %d, %g, %g, %g, %g; want %+v", f, f.Bits(), f.Bias(), f.Largest(),
				f.SmallestNormal(), f.SmallestSubnormal(), f.Epsilon(), p)
		}
		if parsed, err := precision.ParseFormat(strings.ToUpper(f.Name)); err != nil || parsed != f {
			t.Errorf("ParseFormat(%q) = %v, %v", f.Name, parsed, err)
		}
		if dtype, ok := f.DType(); ok {
			if back, ok := precision.FormatOf(dtype); !ok || back != f {
				t.Errorf("FormatOf(%s) = %s, %v", dtype, back, ok)
			}
		}
	}
}

// A format's GoMLX type depends on its bits, not on its name.
func TestDTypeByBits(t *testing.T) {
	saturated, renamed, other := precision.FP16, precision.BF16, precision.E5M2
	saturated.Overflow, renamed.Name, other.Name = precision.ToLargest, "brain", "fp16"
	for f, want := range map[precision.Format]dtypes.DType{saturated: dtypes.Float16, renamed: dtypes.BFloat16,
		other: dtypes.InvalidDType} {
		if got, ok := f.DType(); got != want || ok != (want != dtypes.InvalidDType) {
			t.Errorf("%+v has type %s, %v; want %s", f, got, ok, want)
		}
	}
}

func TestBadFormats(t *testing.T) {
	if _, err := precision.ParseFormat("fp4"); err == nil ||
		!strings.Contains(err.Error(), `no format "fp4": choose one of fp32, tf32`) {
		t.Errorf("ParseFormat: error %v", err)
	}
	other := precision.E4M3
	other.Overflow = precision.ToNaN
	for want, f := range map[string]precision.Format{
		"0 bits of exponent and 0 of mantissa": {},
		"9 bits of exponent":                   {Exponent: 9, Mantissa: 3},
		"24 of mantissa":                       {Exponent: 5, Mantissa: 24},
		"-1 bits of exponent":                  {Exponent: -1, Mantissa: 3},
		"needs infinities": {Exponent: 8, Mantissa: 3, NoInfinities: true,
			Overflow: precision.ToNaN},
		"other than INT8":                 {Mantissa: 3},
		"has no infinities: set Overflow": {Exponent: 4, Mantissa: 3, NoInfinities: true},
	} {
		if err := f.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", f, err, want)
		}
	}
	if err := other.Validate(); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(other); err == nil {
		t.Error("a changed format has been written by its name")
	}
	var read struct{ A, B precision.Format }
	if err := json.Unmarshal([]byte(`{"A": "e4m3", "B": ""}`), &read); err != nil || read.A != precision.E4M3 ||
		read.B != (precision.Format{}) {
		t.Errorf("read %+v, %v", read, err)
	}
	if err := json.Unmarshal([]byte(`{"A": "fp4"}`), &read); err == nil {
		t.Error("an unknown format has been read")
	}
	if text, err := json.Marshal(read); err != nil || string(text) != `{"A":"e4m3","B":""}` {
		t.Errorf("written %s, %v", text, err)
	}
}

// dumb is a list of all numbers of a format, from the definition.
type dumb struct {
	f    precision.Format
	bits []uint32 // of the finite numbers that are not negative, from 0 up
	x    []float64
}

// decode is the definition: (-1)^sign · 2^(exponent-bias) · (1 + mantissa/2^M), or 2^(1-bias) · mantissa/2^M.
func decode(f precision.Format, bits uint32) float64 {
	if f == precision.INT8 {
		return float64(int8(bits))
	}
	p := map[string]struct{ exponent, mantissa, bias, infinity int }{
		"bf16": {8, 7, 127, 255}, "fp16": {5, 10, 15, 31}, "e5m2": {5, 2, 15, 31}, "e4m3": {4, 3, 7, -1},
	}[f.Name]
	all := 1 << p.mantissa
	m, rest := int(bits)%all, int(bits)/all
	e, sign := rest%(1<<p.exponent), rest>>p.exponent
	x := math.Pow(2, float64(e-p.bias)) * (1 + float64(m)/float64(all))
	if e == 0 {
		x = math.Pow(2, float64(1-p.bias)) * float64(m) / float64(all)
	}
	if e == p.infinity && m == 0 {
		x = math.Inf(1)
	}
	if e == p.infinity && m > 0 || f == precision.E4M3 && bits&0x7f == 0x7f {
		return math.NaN()
	}
	if sign == 1 {
		return math.Copysign(x, -1)
	}
	return x
}

func numbers(f precision.Format) dumb {
	d := dumb{f: f}
	for bits := range uint32(1) << (f.Bits() - 1) {
		if x := decode(f, bits); x <= math.MaxFloat64 {
			d.bits, d.x = append(d.bits, bits), append(d.x, x)
		}
	}
	return d
}

// nearest searches for the number nearest to a nonnegative x; beyond the last it assumes another one at the same
// distance.
func (d dumb) nearest(x float64) float64 {
	n := len(d.x)
	next := 2*d.x[n-1] - d.x[n-2]
	i := sort.SearchFloat64s(d.x, x)
	switch {
	case math.IsInf(x, 1) || i == n && x-d.x[n-1] > next-x || i == n && x-d.x[n-1] == next-x && d.bits[n-1]%2 == 1:
		if d.f.Overflow == precision.ToLargest {
			return d.x[n-1]
		}
		return math.Inf(1)
	case i == n:
		return d.x[n-1]
	case i == 0:
		return d.x[0]
	case x-d.x[i-1] < d.x[i]-x || x-d.x[i-1] == d.x[i]-x && d.bits[i-1]%2 == 0:
		return d.x[i-1]
	}
	return d.x[i]
}

// probes are all numbers of a format, the midpoints between neighbours, including the one after the last, the float64
// numbers beside each of them, and special values.
func (d dumb) probes(next func(x float64, up bool) float64) []float64 {
	var all []float64
	n := len(d.x)
	for i, x := range d.x {
		after := 2*d.x[n-1] - d.x[max(n-2, 0)]
		if i+1 < n {
			after = d.x[i+1]
		}
		middle := x + (after-x)/2
		all = append(all, x, middle, next(middle, false), next(middle, true), next(x, true))
	}
	return append(all, math.Inf(1), math.MaxFloat32, math.SmallestNonzeroFloat32, 2*d.x[n-1])
}

func next64(x float64, up bool) float64 {
	if up {
		return math.Nextafter(x, math.Inf(1))
	}
	return math.Nextafter(x, math.Inf(-1))
}

func equal(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Float64bits(a) == math.Float64bits(b)
}

var small = []precision.Format{precision.BF16, precision.FP16, precision.E5M2, precision.E4M3, precision.INT8}

func TestDecodeAll(t *testing.T) {
	for _, f := range small {
		for bits := range uint32(1) << f.Bits() {
			got := f.Decode(bits)
			if want := decode(f, bits); !equal(got, want) {
				t.Fatalf("%s: bits %#x are %g, want %g", f, bits, got, want)
			}
			// Upstream decodes correctly.
			if want := float16.Float16(bits).Float64(); f == precision.FP16 && !equal(got, want) {
				t.Fatalf("bits %#x are %g, upstream's %g", bits, got, want)
			}
			if want := bfloat16.FromBits(uint16(bits)).Float64(); f == precision.BF16 && !equal(got, want) {
				t.Fatalf("bits %#x are %g, upstream's %g", bits, got, want)
			}
			// Encoding the decoded number gives these bits again; NaNs become the quiet one.
			back := f.Encode(got)
			if math.IsNaN(got) && !math.IsNaN(f.Decode(back)) || !math.IsNaN(got) && back != bits &&
				!(f == precision.INT8 && bits == 0x80) {
				t.Fatalf("%s: bits %#x are %g, whose bits are %#x", f, bits, got, back)
			}
		}
	}
}

func TestRoundAll(t *testing.T) {
	for _, f := range small {
		d := numbers(f)
		for _, x := range d.probes(next64) {
			if x < 0 { // beside 0
				continue
			}
			want := d.nearest(x)
			if got := f.Round(x); !equal(got, want) {
				t.Fatalf("%s: %x becomes %x, want %x", f, x, got, want)
			}
			negative := -want
			if f == precision.INT8 {
				negative += 0
			}
			if got := f.Round(-x); !equal(got, negative) {
				t.Fatalf("%s: %x becomes %x, want %x", f, -x, got, negative)
			}
			if got := f.Decode(f.Encode(-x)); !equal(got, negative) {
				t.Fatalf("%s: the bits of %x are %x, which is %x", f, -x, f.Encode(-x), got)
			}
		}
	}
}

// FP32 and TF32 have too many numbers to list; Go itself rounds to float32.
func TestWideFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200_000 {
		x := math.Float64frombits(r.Uint64())
		if i%2 == 0 {
			x = math.Ldexp(r.NormFloat64(), r.IntN(300)-150)
		}
		if got, want := precision.FP32.Round(x), float64(float32(x)); !equal(got, want) {
			t.Fatalf("fp32: %x becomes %x, want %x", x, got, want)
		}
		if bits := math.Float32bits(float32(x)); !math.IsNaN(x) && precision.FP32.Encode(x) != bits {
			t.Fatalf("fp32: the bits of %x are %#x, want %#x", x, precision.FP32.Encode(x), bits)
		} else if got := precision.FP32.Decode(bits); !equal(got, float64(float32(x))) {
			t.Fatalf("fp32: bits %#x are %x", bits, got)
		}
		// TF32 is FP32 without the lowest 13 bits, so there is one number right below and one right above.
		x = float64(math.Float32frombits(r.Uint32() &^ 0x8000_0000))
		below := float64(math.Float32frombits(math.Float32bits(float32(x)) &^ 0x1fff))
		above := float64(math.Float32frombits(math.Float32bits(float32(x))&^0x1fff + 0x2000))
		if math.IsNaN(x) || math.IsInf(above, 0) || math.IsNaN(above) {
			continue
		}
		want := below
		if odd := math.Float32bits(float32(below))&0x2000 != 0; x-below > above-x || x-below == above-x && odd {
			want = above
		}
		if got := precision.TF32.Round(x); !equal(got, want) ||
			!equal(precision.TF32.Decode(precision.TF32.Encode(x)), want) {
			t.Fatalf("tf32: %x becomes %x, want %x", x, got, want)
		}
	}
}

func TestOverflow(t *testing.T) {
	toNaN, saturated := precision.E4M3, precision.FP16
	toNaN.Overflow, saturated.Overflow = precision.ToNaN, precision.ToLargest
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		f       precision.Format
		x, want float64
		bits    uint32
	}{
		{precision.FP16, 65519.999, 65504, 0x7bff}, {precision.FP16, 65520, inf, 0x7c00},
		{saturated, 1e300, 65504, 0x7bff},
		{saturated, -inf, -65504, 0xfbff}, {precision.BF16, math.MaxFloat32, inf, 0x7f80},
		// 464 is between 448 = 1.75·2⁸ and 480, which would be the NaN; 448 is the even one.
		{precision.E4M3, 464, 448, 0x7e}, {toNaN, 464, 448, 0x7e}, {precision.E4M3, 465, 448, 0x7e},
		{toNaN, 465, nan, 0x7f},
		{precision.E4M3, inf, 448, 0x7e}, {toNaN, -inf, nan, 0xff}, {toNaN, -465, nan, 0xff},
		{precision.E4M3, nan, nan, 0x7f},
		{precision.E5M2, 61439, 57344, 0x7b}, {precision.E5M2, -61440, -inf, 0xfc}, {precision.E5M2, nan, nan, 0x7e},
		{precision.INT8, 1e9, 127, 0x7f}, {precision.INT8, -inf, -127, 0x81}, {precision.INT8, nan, 0, 0},
		{precision.INT8, -0.5, 0, 0},
		{precision.INT8, 1.5, 2, 2}, {precision.INT8, -2.5, -2, 0xfe},
	} {
		if got, bits := c.f.Round(c.x), c.f.Encode(c.x); !equal(got, c.want) || bits != c.bits {
			t.Errorf("%s: %g becomes %g with bits %#x, want %g and %#x", c.f, c.x, got, bits, c.want, c.bits)
		}
	}
}

// Either neighbour is chosen, the upper one as often as u is below the distance from the lower.
func TestRoundStochastic(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range small {
		d := numbers(f)
		for range 20_000 {
			i := r.IntN(len(d.x) - 1)
			part, u := r.Float64(), r.Float64()
			x := d.x[i] + part*(d.x[i+1]-d.x[i])
			part = (x - d.x[i]) / (d.x[i+1] - d.x[i]) // exact: the distance is a power of two
			want := d.x[i]
			if u < part {
				want = d.x[i+1]
			}
			if got := f.RoundStochastic(x, u); got != want {
				t.Fatalf("%s: %x with u=%g becomes %x, want %x", f, x, u, got, want)
			}
			if got := f.RoundStochastic(-x, u); got != -want {
				t.Fatalf("%s: %x with u=%g becomes %x, want %x", f, -x, u, got, -want)
			}
			if got := f.RoundStochastic(d.x[i], u); got != d.x[i] {
				t.Fatalf("%s: %x with u=%g becomes %x", f, d.x[i], u, got)
			}
		}
	}
	// Beyond the largest number the result is Round's, for any u.
	toNaN := precision.E4M3
	toNaN.Overflow = precision.ToNaN
	for _, u := range []float64{0, 0.4, 0.6, 1 - 0x1p-53} {
		for _, c := range []struct {
			f       precision.Format
			x, want float64
		}{
			{precision.FP16, 65519.999, 65504}, {precision.FP16, 65520, math.Inf(1)}, {precision.FP16, -65505, -65504},
			{precision.FP16, math.Inf(-1), math.Inf(-1)}, {toNaN, 464, 448}, {toNaN, 465, math.NaN()},
			{precision.INT8, 127.9, 127},
		} {
			if got := c.f.RoundStochastic(c.x, u); !equal(got, c.want) {
				t.Errorf("%s: %g with u=%g becomes %g, want %g", c.f, c.x, u, got, c.want)
			}
		}
	}
}

// Any number is encoded at least as near as its neighbours, and encoding is idempotent.
func FuzzRound(f *testing.F) {
	for _, x := range []float64{0, math.Copysign(0, -1), 1, 65520, 0x1p-25, math.Inf(-1), math.NaN(), 464, -1e-320} {
		f.Add(math.Float64bits(x), uint32(7))
	}
	f.Fuzz(func(t *testing.T, word uint64, bits uint32) {
		x := math.Float64frombits(word)
		for _, format := range precision.Formats() {
			r := format.Round(x)
			if got := format.Decode(format.Encode(x)); !equal(got, r) {
				t.Errorf("%s: the bits of %x stand for %x, it rounds to %x", format, x, got, r)
			}
			if again := format.Round(r); !equal(again, r) {
				t.Errorf("%s: %x becomes %x, then %x", format, x, r, again)
			}
			other := format.Decode(bits)
			if math.IsNaN(x) || math.IsInf(r, 0) || math.IsNaN(other) || math.IsInf(other, 0) ||
				math.Abs(x) > format.Largest() || math.Abs(other) > format.Largest() {
				continue
			}
			if math.Abs(r-x) > math.Abs(other-x) {
				t.Errorf("%s: %x becomes %x, but %x is nearer", format, x, r, other)
			}
		}
	})
}
