package compress

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// FP10 is Gist's format of 10 bits, of which three share a word of 32.
var FP10 = precision.Format{Name: "fp10", Exponent: 5, Mantissa: 4, Overflow: precision.ToLargest}

// Float keeps numbers rounded as [precision.Round] does, in the bits of a format of at most 16 (Gist's "delayed
// precision reduction": the forward pass has had them in full). A number moves by half a unit of its last place at
// most, unless it is too large, and f.Overflow says what becomes of it. A format that is not valid, is wider, or of
// integers is an error.
func Float(f precision.Format) (Codec, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if f.Exponent == 0 || f.Bits() > 16 {
		return nil, fmt.Errorf("compress: format %q of %d bits: give one of floats with at most 16; Int8 is for "+
			"integers, Dense keeps all bits",
			f.Name, f.Bits())
	}
	return float{f}, nil
}

type float struct{ format precision.Format }

func (c float) packing() packing { return packing(c.format.Bits()) }

func (c float) Name() string                   { return c.format.Name }
func (c float) Bytes(shape shapes.Shape) int64 { return c.packing().bytes(shape) }

func (c float) Encode(x *graph.Node) []*graph.Node {
	return []*graph.Node{c.packing().pack(bitsOf(precision.Round(keepable32(x), c.format), c.format))}
}

func (c float) Decode(kept []*graph.Node, like shapes.Shape) *graph.Node {
	return graph.ConvertDType(numbers(c.packing().unpack(kept[0], like), c.format), like.DType)
}

const exponents = 0x7f800000 // the bits of a float32's exponent, which alone are the infinity

// bitsOf returns the bits that [precision.Format.Encode] has for each x, float32 numbers of the format, in uint32.
func bitsOf(x *graph.Node, f precision.Format) *graph.Node {
	g := x.Graph()
	bits := func(b uint32) *graph.Node { return graph.Const(g, b) }
	all := graph.Bitcast(x, dtypes.Uint32)
	magnitude := graph.BitwiseAnd(all, bits(1<<31-1))
	sign := graph.BitwiseShiftLeft(graph.BitwiseShiftRightLogical(all, bits(31)), bits(uint32(f.Bits()-1)))

	lost := bits(uint32(23 - f.Mantissa))
	code := graph.BitwiseShiftRightLogical(magnitude, lost)
	if f.Exponent < 8 {
		code = graph.BitwiseShiftRightLogical(graph.Sub(magnitude, bits(rebias(f))), lost)
		small := graph.Mul(graph.Bitcast(magnitude, dtypes.Float32), graph.Const(g, float32(1/f.SmallestSubnormal())))
		normal := graph.GreaterOrEqual(magnitude, bits(math.Float32bits(float32(f.SmallestNormal()))))
		code = graph.Where(normal, code, graph.ConvertDType(small, dtypes.Uint32))
		code = graph.Where(graph.Equal(magnitude, bits(exponents)), bits(top(f)), code)
	}
	code = graph.Where(graph.GreaterThan(magnitude, bits(exponents)), bits(f.Encode(math.NaN())&(1<<(f.Bits()-1)-1)), code)
	return graph.BitwiseOr(code, sign)
}

// numbers returns what bits in uint32 stand for, as [precision.Format.Decode] has it, in float32.
func numbers(all *graph.Node, f precision.Format) *graph.Node {
	g := all.Graph()
	bits := func(b uint32) *graph.Node { return graph.Const(g, b) }
	largest := uint32(1)<<(f.Bits()-1) - 1
	code := graph.BitwiseAnd(all, bits(largest))
	sign := graph.BitwiseShiftLeft(graph.BitwiseShiftRightLogical(all, bits(uint32(f.Bits()-1))), bits(31))

	shifted := graph.BitwiseShiftLeft(code, bits(uint32(23-f.Mantissa)))
	magnitude := shifted
	if f.Exponent < 8 {
		small := graph.Mul(graph.ConvertDType(code, dtypes.Float32), graph.Const(g, float32(f.SmallestSubnormal())))
		normal := graph.GreaterOrEqual(code, bits(1<<f.Mantissa))
		magnitude = graph.Where(normal, graph.Add(shifted, bits(rebias(f))), graph.Bitcast(small, dtypes.Uint32))
		special := graph.GreaterOrEqual(code, bits(top(f)))
		if f.NoInfinities {
			special = graph.Equal(code, bits(largest))
		}
		magnitude = graph.Where(special, graph.BitwiseOr(shifted, bits(exponents)), magnitude)
	}
	return graph.Bitcast(graph.BitwiseOr(magnitude, sign), dtypes.Float32)
}

// rebias is what a float32's bits have more than those of the same normal number in a format, if both are shifted
// alike.
func rebias(f precision.Format) uint32 { return uint32(127-f.Bias()) << 23 }

// top is the bits of a format's exponent, which alone are the infinity if it has one.
func top(f precision.Format) uint32 { return (1<<f.Exponent - 1) << f.Mantissa }
