package precision

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Rounding in graphs works on the bits of float32 numbers, for conversions do not do: GoMLX lacks floating-point types
// of 8 bits, and XLA may leave out a conversion to a half type and back (its option xla_allow_excess_precision; lib/xla
// forbids it on CPUs). The bits are the same as [Format.Round]'s, for subnormal numbers too, which XLA's arithmetic on
// CPUs takes for 0.

// Round returns x, of any shape, rounded as [Format.Round] does, in x's type, which is float32 or a half type (whose
// own precision the result then has too). The gradient goes straight through, as if nothing were rounded (Bengio et
// al. 2013, "Estimating or Propagating Gradients Through Stochastic Neurons", §4). It panics if the type is another or
// the format is not valid.
func Round(x *graph.Node, f Format) *graph.Node { return straight(x, f, nil) }

// RoundStochastic is Round by [Format.RoundStochastic], with u = random/2³². random has x's dimensions and type
// uint32; other dimensions or another type panic. (Where random is 0 XLA on CPUs may miss that u < part for a part that
// is a subnormal float32.)
func RoundStochastic(x *graph.Node, f Format, random *graph.Node) *graph.Node {
	if random.DType() != dtypes.Uint32 || !random.Shape().EqualDimensions(x.Shape()) {
		panic(fmt.Errorf("precision: random bits of shape %s for numbers of shape %s: give as many, of type uint32",
			random.Shape(), x.Shape()))
	}
	return straight(x, f, random)
}

func straight(x *graph.Node, f Format, random *graph.Node) *graph.Node {
	if err := f.Validate(); err != nil {
		panic(err)
	}
	dtype := x.DType()
	if dtype != dtypes.Float32 && !dtype.IsHalfPrecision() {
		panic(fmt.Errorf("precision: numbers of type %s cannot be rounded in a graph: convert them to float32", dtype))
	}
	if f == FP32 {
		return x
	}
	return autodiff.Custom([]*graph.Node{x},
		func(in []*graph.Node) []*graph.Node {
			x := graph.ConvertDType(in[0], dtypes.Float32)
			if f.Exponent == 0 {
				x = roundInteger(x, f, random)
			} else {
				x = roundBits(x, f, random)
			}
			return []*graph.Node{graph.ConvertDType(x, dtype)}
		},
		func(_, _, v []*graph.Node) []*graph.Node { return v })[0]
}

func roundInteger(x *graph.Node, f Format, random *graph.Node) *graph.Node {
	g, zero := x.Graph(), graph.ZerosLike(x)
	n := graph.Min(whole(graph.Abs(x), random), graph.Const(g, float32(f.Largest())))
	signed := graph.Where(graph.LessThan(x, zero), graph.Neg(n), n)
	return graph.Where(graph.GreaterThan(n, zero), signed, zero) // no -0 and no NaN
}

func roundBits(x *graph.Node, f Format, random *graph.Node) *graph.Node {
	g := x.Graph()
	bits := func(b uint32) *graph.Node { return graph.Const(g, b) }
	number := func(x float64) *graph.Node { return graph.Const(g, float32(x)) }
	const (
		exponents = 0x7f800000 // the infinity too
		mantissas = 0x007fffff
		nan       = 0x7fc00000
	)
	all := graph.Bitcast(x, dtypes.Uint32)
	sign := graph.BitwiseAnd(all, bits(1<<31))
	magnitude := graph.BitwiseAnd(all, bits(exponents|mantissas))

	// In units of the last place that stays the mantissa is below 2^f.Mantissa; if it becomes that, the exponent grows.
	lost := 23 - f.Mantissa
	units := graph.Mul(graph.ConvertDType(graph.BitwiseAnd(magnitude, bits(mantissas)), dtypes.Float32),
		number(math.Ldexp(1, -lost)))
	largest := math.Float32bits(float32(f.Largest()))
	n := whole(units, random)
	if random != nil {
		n = graph.Where(graph.GreaterThan(magnitude, bits(largest)), whole(units, nil), n)
	}
	kept := graph.ConvertDType(n, dtypes.Uint32)
	rounded := graph.Add(graph.BitwiseAnd(magnitude, bits(exponents)), graph.BitwiseShiftLeft(kept, bits(uint32(lost))))

	if f.Exponent < 8 { // below the normal numbers the last place stays where it is
		units := graph.Mul(graph.Bitcast(magnitude, dtypes.Float32), number(1/f.SmallestSubnormal()))
		small := graph.Mul(whole(units, random), number(f.SmallestSubnormal()))
		normal := graph.GreaterOrEqual(magnitude, bits(math.Float32bits(float32(f.SmallestNormal()))))
		rounded = graph.Where(normal, rounded, graph.Bitcast(small, dtypes.Uint32))
	}

	tooLarge := map[Overflow]uint32{ToInfinity: exponents, ToNaN: nan, ToLargest: largest}[f.Overflow]
	rounded = graph.Where(graph.GreaterThan(rounded, bits(largest)), fill(rounded, tooLarge), rounded)
	rounded = graph.Where(graph.GreaterThan(magnitude, bits(exponents)), magnitude, rounded) // NaN
	return graph.Bitcast(graph.BitwiseOr(rounded, sign), dtypes.Float32)
}

// whole rounds numbers that are not negative to whole ones.
func whole(n, random *graph.Node) *graph.Node {
	if random == nil {
		return graph.Round(n) // ties to even
	}
	g := n.Graph()
	floor := graph.Floor(n)
	// exact, and for a bit pattern r, r < part if r < ⌈part⌉
	part := graph.Mul(graph.Sub(n, floor), graph.Const(g, float32(1<<32)))
	up := graph.LessThan(random, graph.ConvertDType(graph.Ceil(part), dtypes.Uint32))
	return graph.Add(floor, graph.ConvertDType(up, dtypes.Float32))
}

func fill(like *graph.Node, value uint32) *graph.Node {
	return graph.BroadcastToShape(graph.Const(like.Graph(), value), like.Shape())
}
