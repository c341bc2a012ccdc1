package precision

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Rounding in graphs works on the bits of float32 numbers, since conversions do not do it: GoMLX has no 8-bit floats,
// and where a user sets XLA's flag xla_allow_excess_precision, XLA leaves out a conversion to a half type and back. The
// bits equal those of [Format.Round], also for subnormal numbers, which XLA's arithmetic on CPUs flushes to 0.

// Round rounds x, of any shape, as [Format.Round] does, and returns it in its own type, float32 or a half type (whose
// precision then limits the result too). The gradient is the straight-through estimator's: as if nothing were rounded
// (Bengio et al. 2013, "Estimating or Propagating Gradients Through Stochastic Neurons", §4). It panics for other types
// and invalid formats.
func Round(x *graph.Node, f Format) *graph.Node { return straight(x, f, nil) }

// RoundStochastic is Round by [Format.RoundStochastic], with u = random/2³². random is uint32 with x's dimensions; it
// panics otherwise. (Where random is 0, XLA on CPUs may miss that u < part for a part that is a subnormal float32.)
func RoundStochastic(x *graph.Node, f Format, random *graph.Node) *graph.Node {
	if random.DType() != dtypes.Uint32 || !random.Shape().EqualDimensions(x.Shape()) {
		panic(fmt.Errorf("precision: random bits of shape %s for numbers of shape %s: give one uint32 for each",
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
	n := graph.Min(integer(graph.Abs(x), random), graph.Const(g, float32(f.Largest())))
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

	// In units of the last remaining place the mantissa is below 2^f.Mantissa; if it reaches that, the exponent grows.
	dropped := 23 - f.Mantissa
	units := graph.Mul(graph.ConvertDType(graph.BitwiseAnd(magnitude, bits(mantissas)), dtypes.Float32),
		number(math.Ldexp(1, -dropped)))
	largest := math.Float32bits(float32(f.Largest()))
	n := integer(units, random)
	if random != nil {
		n = graph.Where(graph.GreaterThan(magnitude, bits(largest)), integer(units, nil), n)
	}
	mantissa := graph.BitwiseShiftLeft(graph.ConvertDType(n, dtypes.Uint32), bits(uint32(dropped)))
	rounded := graph.Add(graph.BitwiseAnd(magnitude, bits(exponents)), mantissa)

	if f.Exponent < 8 { // below the normal numbers the last place has a fixed value
		units := graph.Mul(graph.Bitcast(magnitude, dtypes.Float32), number(1/f.SmallestSubnormal()))
		small := graph.Mul(integer(units, random), number(f.SmallestSubnormal()))
		normal := graph.GreaterOrEqual(magnitude, bits(math.Float32bits(float32(f.SmallestNormal()))))
		rounded = graph.Where(normal, rounded, graph.Bitcast(small, dtypes.Uint32))
	}

	tooLarge := map[Overflow]uint32{ToInfinity: exponents, ToNaN: nan, ToLargest: largest}[f.Overflow]
	rounded = graph.Where(graph.GreaterThan(rounded, bits(largest)), fill(rounded, tooLarge), rounded)
	rounded = graph.Where(graph.GreaterThan(magnitude, bits(exponents)), magnitude, rounded) // NaN
	return graph.Bitcast(graph.BitwiseOr(rounded, sign), dtypes.Float32)
}

// integer rounds nonnegative numbers to integers.
func integer(n, random *graph.Node) *graph.Node {
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
