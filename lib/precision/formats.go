// Package precision is number formats and how to train in them: rounding on the host and in graphs, products and sums
// in reduced precision, policies that say which type holds what, and loss scaling.
//
// What a device has no type for is simulated: values are rounded to those of the [Format] and kept in a wider type.
package precision

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// Format is a number format of at most 32 bits, as data: one sign bit, and bits of exponent and mantissa. The zero
// Format stands for none.
type Format struct {
	Name     string
	Exponent int // bits; 0 for integers
	Mantissa int // bits behind the leading one; those of the magnitude for integers

	// NoInfinities says that the largest exponent holds numbers too, all but the one with every bit set, which is NaN.
	NoInfinities bool
	// Overflow says what a number becomes that is too large when rounded.
	Overflow Overflow
}

// Overflow is what becomes of a number beyond a format's range.
type Overflow uint8

const (
	ToInfinity Overflow = iota // as IEEE 754 has it
	ToNaN                      // for formats without infinities
	ToLargest                  // saturation: the largest number of that sign, for infinities too
)

// The formats. FP32 and FP16 are IEEE 754's binary32 and binary16. BF16 is the upper half of an FP32. TF32 is 19
// bits of an FP32, which is what NVIDIA's tensor cores read of one. E4M3 (the FN variant: no infinities, two NaNs) and
// E5M2 are of Micikevicius et al. 2022, "FP8 Formats for Deep Learning", §3, and the OCP 8-bit Floating Point
// Specification, which leaves saturation to the user: E4M3, for operands, saturates here, and E5M2, for gradients, goes
// to infinity, so that loss scaling sees it. Copy a format and set Overflow for the other mode.
//
// INT8 holds -127 to 127 (and never -128, to be symmetric), saturates, and has 0 for NaN; see [Quantize].
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

// ParseFormat returns the format of a name, in any case. An unknown one is an error that lists them.
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

// FormatOf returns the format of a GoMLX type, and false if there is none here.
func FormatOf(dtype dtypes.DType) (Format, bool) {
	for _, f := range Formats() {
		if d, ok := f.DType(); ok && d == dtype {
			return f, true
		}
	}
	return Format{}, false
}

// DType returns GoMLX's type that holds the format's numbers, whatever its name and Overflow, and false if GoMLX has
// none. (It names floating-point types of 8 bits, but its tensors and graphs have none of them.)
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

// MarshalText returns the name, and an error if it is not that of a format above, as it is.
func (f Format) MarshalText() ([]byte, error) {
	if f == (Format{}) {
		return nil, nil
	}
	if known, err := ParseFormat(f.Name); err != nil {
		return nil, err
	} else if known != f {
		return nil, fmt.Errorf("precision: the format %+v is not the %q of this package: a name cannot stand for it", f,
			f.Name)
	}
	return []byte(f.Name), nil
}

// UnmarshalText takes a name; none is the zero Format. After an error the format is as before.
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

// Validate returns an error if the bits are none that can be, or do not fit what stands for too large a number.
func (f Format) Validate() error {
	switch {
	case f.Mantissa < 1 || f.Mantissa > 23 || f.Exponent < 0 || f.Exponent == 1 || f.Exponent > 8:
		return fmt.Errorf("precision: format %q has %d bits of exponent and %d of mantissa: 2 to 8 (0 for integers) "+
			"and 1 to 23 are possible",
			f.Name, f.Exponent, f.Mantissa)
	case f.Exponent == 8 && f.NoInfinities:
		return fmt.Errorf("precision: format %q goes beyond float32: with 8 bits of exponent it needs infinities", f.Name)
	case f.Exponent == 0 && f != INT8:
		return fmt.Errorf("precision: format %q is not INT8, the one of integers", f.Name)
	case f.Overflow > ToLargest || f.Overflow == ToInfinity && f.NoInfinities:
		return fmt.Errorf("precision: format %q has no infinities: set Overflow to ToNaN or ToLargest", f.Name)
	}
	return nil
}

// Bits returns the bits of one number, the sign included.
func (f Format) Bits() int { return 1 + f.Exponent + f.Mantissa }

// Bias is what is added to an exponent when it is stored.
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
	case f.NoInfinities: // all bits set but the last
		return math.Ldexp(2-2*f.Epsilon(), 1<<f.Exponent-1-f.Bias())
	}
	return math.Ldexp(2-f.Epsilon(), 1<<f.Exponent-2-f.Bias())
}

// SmallestNormal returns the smallest positive number of full precision. For integers it is 1.
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
