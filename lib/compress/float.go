package compress

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// FP10 is Gist's format of 10 bits, of which three fit a 32-bit word.
var FP10 = precision.Format{Name: "fp10", Exponent: 5, Mantissa: 4, Overflow: precision.ToLargest}

// Float stores numbers rounded by [precision.Round], in the bits of a format of at most 16 (Gist's "delayed precision
// reduction": the forward pass used them in full precision). The error is at most half a unit in the last place;
// numbers that are too large become what f.Overflow says. An invalid, wider or integer format is an error.
func Float(f precision.Format) (Codec, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if f.Exponent == 0 || f.Bits() > 16 {
		return nil, fmt.Errorf("compress: format %q of %d bits: give a float format of at most 16 bits, or use Int8 "+
			"or Dense", f.Name, f.Bits())
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

func (c float) Decode(codes []*graph.Node, like shapes.Shape) *graph.Node {
	return graph.ConvertDType(numbers(c.packing().unpack(codes[0], like), c.format), like.DType)
}

const exponents = 0x7f800000 // the exponent bits of a float32, which are the bits of +∞

// bitsOf is [precision.Format.Encode] of each x, float32 numbers of the format, as uint32.
func bitsOf(x *graph.Node, f precision.Format) *graph.Node {
	g := x.Graph()
	bits := func(b uint32) *graph.Node { return graph.Const(g, b) }
	all := graph.Bitcast(x, dtypes.Uint32)
	magnitude := graph.BitwiseAnd(all, bits(1<<31-1))
	sign := graph.BitwiseShiftLeft(graph.BitwiseShiftRightLogical(all, bits(31)), bits(uint32(f.Bits()-1)))

	dropped := bits(uint32(23 - f.Mantissa))
	code := graph.BitwiseShiftRightLogical(magnitude, dropped)
	if f.Exponent < 8 {
		code = graph.BitwiseShiftRightLogical(graph.Sub(magnitude, bits(rebias(f))), dropped)
		small := graph.Mul(graph.Bitcast(magnitude, dtypes.Float32), graph.Const(g, float32(1/f.SmallestSubnormal())))
		normal := graph.GreaterOrEqual(magnitude, bits(math.Float32bits(float32(f.SmallestNormal()))))
		code = graph.Where(normal, code, graph.ConvertDType(small, dtypes.Uint32))
		code = graph.Where(graph.Equal(magnitude, bits(exponents)), bits(top(f)), code)
	}
	code = graph.Where(graph.GreaterThan(magnitude, bits(exponents)), bits(f.Encode(math.NaN())&(1<<(f.Bits()-1)-1)),
		code)
	return graph.BitwiseOr(code, sign)
}

// numbers is [precision.Format.Decode] of bits in uint32, as float32.
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

// rebias is the difference between the bits of a normal number in float32 and in the format, shifted to align.
func rebias(f precision.Format) uint32 { return uint32(127-f.Bias()) << 23 }

// top returns the format's exponent bits, which are those of its infinity if it has one.
func top(f precision.Format) uint32 { return (1<<f.Exponent - 1) << f.Mantissa }
