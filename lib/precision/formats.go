// Package precision has number formats and what training in them needs: rounding on the host and in graphs, matmuls and
// sums in reduced precision, mixed-precision policies, and loss scaling.
//
// Formats that a device lacks are simulated: values are rounded to the [Format] and stored in a wider type. [Matmul]
// says which matmuls are not.
package precision

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// Format is a number format of at most 32 bits: one sign bit, and bits of exponent and mantissa. The zero Format means
// none.
type Format struct {
	Name     string
	Exponent int // bits; 0 for integers
	Mantissa int // bits, without the implicit leading one; for integers, those of the magnitude

	// NoInfinities says that the largest exponent holds numbers too, except all bits set, which is NaN.
	NoInfinities bool
	// Overflow says what numbers that are too large become.
	Overflow Overflow
}

// Overflow is what a number beyond a format's range becomes.
type Overflow uint8

const (
	ToInfinity Overflow = iota // as in IEEE 754
	ToNaN                      // for formats without infinities
	ToLargest                  // saturate: the largest number with the same sign, also for infinities
)

// The formats. FP32 and FP16 are IEEE 754's binary32 and binary16. BF16 is the upper half of an FP32. TF32 is the 19
// bits of an FP32 that NVIDIA's tensor cores read. E4M3 (the FN variant: no infinities, two NaNs) and E5M2 are those of
// Micikevicius et al. 2022, "FP8 Formats for Deep Learning", §3, and of the OCP 8-bit Floating Point Specification,
// which leaves saturation to the user: here E4M3, for operands, saturates, and E5M2, for gradients, overflows to
// infinity so that loss scaling notices. To change that, copy a format and set Overflow.
//
// INT8 has -127 to 127 (not -128, to be symmetric), saturates, and converts NaN to 0.
var (
	FP32 = Format{Name: "fp32", Exponent: 8, Mantissa: 23}
	TF32 = Format{Name: "tf32", Exponent: 8, Mantissa: 10}
	BF16 = Format{Name: "bf16", Exponent: 8, Mantissa: 7}
	FP16 = Format{Name: "fp16", Exponent: 5, Mantissa: 10}
	E4M3 = Format{Name: "e4m3", Exponent: 4, Mantissa: 3, NoInfinities: true, Overflow: ToLargest}
	E5M2 = Format{Name: "e5m2", Exponent: 5, Mantissa: 2}
	INT8 = Format{Name: "int8", Mantissa: 7, NoInfinities: true, Overflow: ToLargest}
)

// Formats returns all formats, the widest first.
func Formats() []Format { return []Format{FP32, TF32, BF16, FP16, E5M2, E4M3, INT8} }

// ParseFormat returns the format with a name, in upper or lower case, or an error that lists the names.
func ParseFormat(name string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if strings.EqualFold(f.Name, name) {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("precision: no format %q: choose one of %s", name, strings.Join(names, ", "))
}

// FormatOf returns the format of a GoMLX type, and false if it has none here.
func FormatOf(dtype dtypes.DType) (Format, bool) {
	for _, f := range Formats() {
		if d, ok := f.DType(); ok && d == dtype {
			return f, true
		}
	}
	return Format{}, false
}

// DType returns GoMLX's type for the format, whatever its name and Overflow, and false if there is none. (GoMLX names
// 8-bit floats, but its tensors and graphs do not support them.)
func (f Format) DType() (dtypes.DType, bool) {
	for dtype, of := range map[dtypes.DType]Format{dtypes.Float32: FP32, dtypes.BFloat16: BF16, dtypes.Float16: FP16,
		dtypes.Int8: INT8} {
		if f.Name, f.Overflow = of.Name, of.Overflow; f == of {
			return dtype, true
		}
	}
	return dtypes.InvalidDType, false
}

// String returns the name.
func (f Format) String() string { return f.Name }

// MarshalText returns the name. It is an error if the format is not the one of this package with that name.
func (f Format) MarshalText() ([]byte, error) {
	if f == (Format{}) {
		return nil, nil
	}
	if known, err := ParseFormat(f.Name); err != nil {
		return nil, err
	} else if known != f {
		return nil, fmt.Errorf("precision: the format %+v is not this package's %q: only that can be stored by name", f,
			f.Name)
	}
	return []byte(f.Name), nil
}

// UnmarshalText parses a name; an empty one is the zero Format. An error leaves the format unchanged.
func (f *Format) UnmarshalText(name []byte) error {
	var named Format
	if len(name) > 0 {
		var err error
		if named, err = ParseFormat(string(name)); err != nil {
			return err
		}
	}
	*f = named
	return nil
}

// Validate returns an error if the numbers of bits are impossible or do not fit Overflow.
func (f Format) Validate() error {
	switch {
	case f.Mantissa < 1 || f.Mantissa > 23 || f.Exponent < 0 || f.Exponent == 1 || f.Exponent > 8:
		return fmt.Errorf("precision: format %q has %d bits of exponent and %d of mantissa: choose 2 to 8 (0 for "+
			"integers) and 1 to 23", f.Name, f.Exponent, f.Mantissa)
	case f.Exponent == 8 && f.NoInfinities:
		return fmt.Errorf("precision: format %q exceeds float32: with 8 bits of exponent it needs infinities", f.Name)
	case f.Exponent == 0 && f != INT8:
		return fmt.Errorf("precision: format %q is an integer format other than INT8: use INT8", f.Name)
	case f.Overflow > ToLargest || f.Overflow == ToInfinity && f.NoInfinities:
		return fmt.Errorf("precision: format %q has no infinities: set Overflow to ToNaN or ToLargest", f.Name)
	}
	return nil
}

// Bits returns the number of bits of a number, including the sign.
func (f Format) Bits() int { return 1 + f.Exponent + f.Mantissa }

// Bias is the exponent bias.
func (f Format) Bias() int {
	if f.Exponent == 0 {
		return 1 - f.Mantissa // so that the spacing is 1
	}
	return 1<<(f.Exponent-1) - 1
}

// Largest returns the largest finite number.
func (f Format) Largest() float64 {
	switch {
	case f.Exponent == 0:
		return math.Ldexp(1, f.Mantissa) - 1
	case f.NoInfinities: // all bits set except the last
		return math.Ldexp(2-2*f.Epsilon(), 1<<f.Exponent-1-f.Bias())
	}
	return math.Ldexp(2-f.Epsilon(), 1<<f.Exponent-2-f.Bias())
}

// SmallestNormal returns the smallest positive number with full precision; 1 for integers.
func (f Format) SmallestNormal() float64 {
	if f.Exponent == 0 {
		return 1
	}
	return math.Ldexp(1, 1-f.Bias())
}

// SmallestSubnormal returns the smallest positive number.
func (f Format) SmallestSubnormal() float64 { return math.Ldexp(1, 1-f.Bias()-f.Mantissa) }

// Epsilon returns the distance from 1 to the next larger number.
func (f Format) Epsilon() float64 {
	if f.Exponent == 0 {
		return 1
	}
	return math.Ldexp(1, -f.Mantissa)
}
