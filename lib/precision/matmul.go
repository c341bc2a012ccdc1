package precision

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/xla"
)

// Matmul is the precision of matmuls, as plain data. The zero Matmul uses the operands' type and accumulates half types
// in float32, in the backward pass too.
//
// Matmuls of scaled E4M3 and E5M2 are of 8-bit floats on tensor cores, on GPUs that have such ([xla.HasFP8]), and
// accumulate in float32. Elsewhere they are simulated: numbers are rounded to the format in a wider type. The rounded
// numbers are the same, so the results differ only by the order of sums. But on these GPUs an infinity or NaN in an
// operand makes the whole result NaN. Matmuls of float32 as TF32 are the device's own where it has such
// ([xla.HasTF32]); NVIDIA leaves open how it rounds the operands. All other formats are simulated everywhere.
type Matmul struct {
	// Operands is the format that both operands are rounded to before each matmul; none does not round. Where that is
	// simulated they stay in their type, which should be wide enough for the format.
	Operands Format `json:"operands,omitzero"`
	// Gradients is the format that the output gradient is rounded to before the backward pass's two matmuls, whose
	// other operands are rounded to Operands; none does not round.
	Gradients Format `json:"gradients,omitzero"`
	// Scaled is per-tensor scaling (Micikevicius et al. 2022): each tensor is multiplied by a power of two, at most
	// 2¹²⁶, before it is rounded and divided by it after, so that its largest finite magnitude is between a quarter and
	// a half of the power of two above the format's largest number. Infinities and NaN stay, whatever the format's
	// Overflow. A number that is rounded beyond the largest of the tensor's type becomes infinite. Formats with
	// float32's range (FP32, TF32 and BF16) are not scaled. Under SPMD each device uses the largest of its own shard.
	Scaled bool `json:"scaled,omitempty"`
	// Accumulate is the format that partial sums are rounded to, in the backward pass too: every Chunk products, in the
	// axes' order, are summed, rounded, added to the sum before, and that is rounded. None is float32. It is there to
	// show the effect of such sums: the graph has one addition per chunk.
	Accumulate Format `json:"accumulate,omitzero"`
	// Chunk is the number of products that are summed in float32 before rounding; 1 is the format's own arithmetic.
	Chunk int `json:"chunk,omitempty"`
}

// Validate returns an error that names the first invalid setting.
func (m Matmul) Validate() error {
	for _, s := range []struct {
		name   string
		format Format
	}{{"Operands", m.Operands}, {"Gradients", m.Gradients}, {"Accumulate", m.Accumulate}} {
		if s.format != (Format{}) {
			if err := s.format.Validate(); err != nil {
				return fmt.Errorf("precision: Matmul.%s: %w", s.name, err)
			}
		}
	}
	switch sums := m.Accumulate != (Format{}); {
	case sums && m.Chunk < 1:
		return fmt.Errorf("precision: Matmul.Chunk is %d: set it to at least 1 for sums in %s", m.Chunk, m.Accumulate)
	case !sums && m.Chunk != 0:
		return fmt.Errorf("precision: Matmul.Chunk is %d but Matmul.Accumulate is not set: set it, or Chunk to 0",
			m.Chunk)
	}
	return nil
}

// Dot is graph.DotGeneral in this precision: lhs and rhs, of one float type, are multiplied and summed over the
// contracting axes, for each index of the batch axes. The result, of the operands' type, has the axes (batch…, the
// other axes of lhs…, the other axes of rhs…). Negative axes count from the end. It panics if m is invalid or the
// shapes do not fit.
//
// graph.DotGeneral itself computes the gradients of half types in float32, and wrong ones where both operands contract
// several axes that are not listed in ascending order.
//
// Unless m is zero and the contracting axes are in ascending order, an operand that depends on nothing whose gradient
// is needed, and was made by an operation without a gradient (Floor, Sort, ArgMax, While), must go through
// graph.StopGradient; [autodiff.Custom] says why.
func (m Matmul) Dot(lhs *graph.Node, lhsContracting, lhsBatch []int, rhs *graph.Node,
	rhsContracting, rhsBatch []int) *graph.Node {
	lhsContracting, lhsBatch = axes(lhs, lhsContracting), axes(lhs, lhsBatch)
	rhsContracting, rhsBatch = axes(rhs, rhsContracting), axes(rhs, rhsBatch)
	if m == (Matmul{}) && slices.IsSorted(lhsContracting) && slices.IsSorted(rhsContracting) {
		return dotGeneral(lhs, lhsContracting, lhsBatch, rhs, rhsContracting, rhsBatch)
	}
	if err := m.Validate(); err != nil {
		panic(err)
	}
	l, of := flatten(lhs, lhsContracting, lhsBatch)
	r, other := flatten(rhs, rhsContracting, rhsBatch)
	if !slices.Equal(of.batch, other.batch) || !slices.Equal(of.contracting, other.contracting) {
		panic(fmt.Errorf("precision: contracting axes of dimensions %v and %v, batch axes of %v and %v: "+
			"choose axes with equal dimensions", of.contracting, other.contracting, of.batch, other.batch))
	}
	y := autodiff.Custom([]*graph.Node{l, r},
		func(in []*graph.Node) []*graph.Node {
			of := m.rounding(in[0].Graph(), m.Operands)
			return []*graph.Node{m.product(of(in[0], m.Operands), of(in[1], m.Operands))}
		},
		func(in, _, v []*graph.Node) []*graph.Node { return m.gradients(in[0], in[1], v[0]) })[0]
	return graph.Reshape(y, slices.Concat(of.batch, of.free, other.free)...)
}

// gradients returns those of l·rᵀ, for l (B,M,K), r (B,N,K) and the output gradient dy (B,M,N).
func (m Matmul) gradients(l, r, dy *graph.Node) []*graph.Node {
	of := m.rounding(l.Graph(), m.Operands, m.Gradients)
	left, right, by := of(l, m.Operands), of(r, m.Operands), of(dy, m.Gradients)
	return []*graph.Node{m.product(by, right.swap()), m.product(by.swap(), left.swap())}
}

// DotGradients returns the gradients of the matmul [Matmul.Dot] of lhs (M,K) and rhs (K,N), in their type, for the
// output gradient v (M,N). It is for loops, in which GoMLX has no gradients.
func (m Matmul) DotGradients(lhs, rhs, v *graph.Node) (dLHS, dRHS *graph.Node) {
	batch := func(x *graph.Node) *graph.Node { return graph.InsertAxes(x, 0) }
	d := m.gradients(batch(lhs), batch(graph.Transpose(rhs, 0, 1)), batch(v))
	return graph.Squeeze(d[0], 0), graph.Transpose(graph.Squeeze(d[1], 0), 0, 1)
}

// dotGeneral is the backend's own, whose gradient GoMLX computes in the type of the result.
func dotGeneral(lhs *graph.Node, lhsContracting, lhsBatch []int, rhs *graph.Node,
	rhsContracting, rhsBatch []int) *graph.Node {
	return graph.Dot(lhs, rhs).WithAccumulatorDType(dtypes.InvalidDType).General(lhsContracting, lhsBatch,
		rhsContracting, rhsBatch)
}

// operand is an operand of a matmul, (B,M,K).
type operand struct {
	x *graph.Node // rounded, unless f8 is a type
	// The 8-bit type that the matmul rounds x to, and what its result must be multiplied by since x is scaled.
	f8      dtypes.DType
	unscale *graph.Node
	dtype   dtypes.DType // the operand's before scaling
}

// swap exchanges the last two axes.
func (o operand) swap() operand {
	o.x = graph.TransposeAllAxes(o.x, 0, 2, 1)
	return o
}

// rounding returns how to round the operands of matmuls to formats: to 8-bit floats if all formats are such and the
// devices have them, not at all to TF32 if the devices do it, else simulated.
func (m Matmul) rounding(g *graph.Graph, formats ...Format) func(*graph.Node, Format) operand {
	real := m.Accumulate == (Format{})
	fp8 := real && m.Scaled
	for _, f := range formats {
		fp8 = fp8 && f.fp8() != dtypes.InvalidDType
	}
	if fp8 && hasFP8(g) {
		return scaledFP8
	}
	tf32 := real && xla.HasTF32(g)
	return func(x *graph.Node, f Format) operand {
		if !tf32 || f != TF32 || x.DType() != dtypes.Float32 {
			x = m.round(x, f)
		}
		return operand{x: x}
	}
}

// hasFP8 is a variable for tests.
var hasFP8 = xla.HasFP8

// fp8 returns the 8-bit type of a format, whatever its Overflow, or InvalidDType.
func (f Format) fp8() dtypes.DType {
	for dtype, of := range map[dtypes.DType]Format{dtypes.F8E4M3FN: E4M3, dtypes.F8E5M2: E5M2} {
		if f.Name, f.Overflow = of.Name, of.Overflow; f == of {
			return dtype
		}
	}
	return dtypes.InvalidDType
}

// scaledFP8 scales x for an 8-bit format. A result of an x that is not finite is multiplied by NaN.
func scaledFP8(x *graph.Node, f Format) operand {
	dtype := x.DType()
	x = graph.ConvertDType(x, dtypes.Float32)
	g, inf := x.Graph(), graph.Infinity(x.Graph(), dtypes.Float32, 1)
	largest := graph.ReduceAllMax(graph.Where(graph.IsFinite(x), graph.Abs(x), graph.BroadcastToShape(inf, x.Shape())))
	scale, unscale := f.scale(largest)
	nan := graph.Const(g, float32(math.NaN()))
	unscale = graph.Where(graph.IsFinite(largest), unscale, nan)
	return operand{graph.Mul(x, scale), f.fp8(), unscale, dtype}
}

// product returns a·bᵀ (B,M,N).
func (m Matmul) product(a, b operand) *graph.Node {
	if a.f8 == dtypes.InvalidDType {
		return m.matmul(a.x, b.x)
	}
	// Powers of two scale bfloat16 exactly; in float16 the scaled sums could overflow.
	of := dtypes.Float32
	if a.dtype == dtypes.BFloat16 {
		of = a.dtype
	}
	y := xla.DotFP8(a.x, b.x, a.f8, b.f8, of)
	y = graph.Mul(y, graph.ConvertDType(graph.Mul(a.unscale, b.unscale), of))
	return graph.ConvertDType(y, a.dtype)
}

// matmul returns a·bᵀ (B,M,N) for a (B,M,K) and b (B,N,K).
func (m Matmul) matmul(a, b *graph.Node) *graph.Node {
	if m.Accumulate == (Format{}) {
		return dotGeneral(a, []int{2}, []int{0}, b, []int{2}, []int{0})
	}
	dtype := a.DType()
	y := m.accumulate(dotGeneral(m.chunks(a), []int{3}, []int{1, 0}, m.chunks(b), []int{3}, []int{1, 0}))
	return graph.ConvertDType(y, dtype)
}

// chunks splits the last axis of x (B,M,K): (B,⌈K/Chunk⌉,M,min(Chunk,K)) in float32, padded with zeros.
func (m Matmul) chunks(x *graph.Node) *graph.Node {
	d := x.Shape().Dimensions
	chunk := min(m.Chunk, d[2])
	n := (d[2] + chunk - 1) / chunk
	x = graph.ConvertDType(x, dtypes.Float32)
	x = graph.Pad(x, graph.Const(x.Graph(), float32(0)), graph.PadAxis{}, graph.PadAxis{},
		graph.PadAxis{End: n*chunk - d[2]})
	return graph.TransposeAllAxes(graph.Reshape(x, d[0], d[1], n, chunk), 0, 2, 1, 3)
}

// accumulate adds the slices of x along its first axis, one after another.
func (m Matmul) accumulate(x *graph.Node) *graph.Node {
	var sum *graph.Node
	for i := range x.Shape().Dimensions[0] {
		part := Round(graph.Squeeze(graph.SliceAxis(x, 0, graph.AxisElem(i)), 0), m.Accumulate)
		if sum == nil {
			sum = part
		} else {
			sum = Round(graph.Add(sum, part), m.Accumulate)
		}
	}
	return sum
}

// round rounds an operand to a format, if there is one.
func (m Matmul) round(x *graph.Node, f Format) *graph.Node {
	if f == (Format{}) {
		return x
	}
	if !m.Scaled || f.Exponent == FP32.Exponent {
		return Round(x, f)
	}
	dtype := x.DType()
	x = graph.ConvertDType(x, dtypes.Float32)
	finite := graph.IsFinite(x)
	scale, unscale := f.scale(graph.ReduceAllMax(graph.Abs(graph.Where(finite, x, graph.ZerosLike(x)))))
	rounded := graph.Mul(Round(graph.Mul(x, scale), f), unscale)
	return graph.ConvertDType(graph.Where(finite, rounded, x), dtype)
}

// scale returns the power of two by which [Matmul.Scaled] multiplies a tensor with this largest magnitude, a float32
// scalar, and its inverse.
func (f Format) scale(largest *graph.Node) (scale, inverse *graph.Node) {
	g := largest.Graph()
	// The largest power of two up to the largest magnitude, bounded so that float32 has both quotients; for zeros any
	// will do.
	bits := graph.BitwiseAnd(graph.Bitcast(largest, dtypes.Uint32), graph.Const(g, uint32(0x7f800000)))
	top := math.Exp2(math.Floor(math.Log2(f.Largest())) - 1)
	power := graph.ClipScalar(graph.Bitcast(bits, dtypes.Float32), top*0x1p-126, min(top*0x1p126, 0x1p127))
	return graph.Div(graph.Const(g, float32(top)), power), graph.DivScalar(power, top)
}

// dimensions are a tensor's, by their role in a matmul.
type dimensions struct{ batch, free, contracting []int }

// flatten returns x with its axes in the order batch, free, contracting, and each kind merged into one axis.
func flatten(x *graph.Node, contracting, batch []int) (*graph.Node, dimensions) {
	var free []int
	for axis := range x.Rank() {
		if !slices.Contains(contracting, axis) && !slices.Contains(batch, axis) {
			free = append(free, axis)
		}
	}
	if order := slices.Concat(batch, free, contracting); !slices.IsSorted(order) {
		x = graph.TransposeAllAxes(x, order...)
	}
	b, f := len(batch), len(batch)+len(free)
	d := x.Shape().Dimensions
	of := dimensions{d[:b], d[b:f], d[f:]}
	return graph.Reshape(x, size(of.batch), size(of.free), size(of.contracting)), of
}

func size(dimensions []int) int {
	n := 1
	for _, d := range dimensions {
		n *= d
	}
	return n
}

// axes converts negative axes.
func axes(x *graph.Node, of []int) []int {
	adjusted := make([]int, len(of))
	for i, axis := range of {
		adjusted[i] = graph.MustAdjustAxis(axis, x)
		if slices.Contains(adjusted[:i], adjusted[i]) {
			panic(fmt.Errorf("precision: axes %v of a matmul: name each once", of))
		}
	}
	return adjusted
}
