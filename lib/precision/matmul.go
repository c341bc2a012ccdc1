package precision

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Matmul is the precision of matmuls, as plain data. The zero Matmul uses the operands' type and accumulates half types
// in float32, in the backward pass too.
type Matmul struct {
	// Operands is the format that both operands are rounded to before each matmul; none does not round. They stay in
	// their type, which should be wide enough for the format.
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
			return []*graph.Node{m.matmul(m.round(in[0], m.Operands), m.round(in[1], m.Operands))}
		},
		func(in, _, v []*graph.Node) []*graph.Node {
			l, r, dy := m.round(in[0], m.Operands), m.round(in[1], m.Operands), m.round(v[0], m.Gradients)
			return []*graph.Node{m.matmul(dy, swap(r)), m.matmul(swap(dy), swap(l))}
		})[0]
	return graph.Reshape(y, slices.Concat(of.batch, of.free, other.free)...)
}

// dotGeneral is the backend's own, whose gradient GoMLX computes in the type of the result.
func dotGeneral(lhs *graph.Node, lhsContracting, lhsBatch []int, rhs *graph.Node,
	rhsContracting, rhsBatch []int) *graph.Node {
	return graph.Dot(lhs, rhs).WithAccumulatorDType(dtypes.InvalidDType).General(lhsContracting, lhsBatch,
		rhsContracting, rhsBatch)
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
	g, finite := x.Graph(), graph.IsFinite(x)
	// The largest power of two up to the largest magnitude, bounded so that float32 has both quotients; for zeros any
	// will do.
	largest := graph.ReduceAllMax(graph.Abs(graph.Where(finite, x, graph.ZerosLike(x))))
	bits := graph.BitwiseAnd(graph.Bitcast(largest, dtypes.Uint32), graph.Const(g, uint32(0x7f800000)))
	top := math.Exp2(math.Floor(math.Log2(f.Largest())) - 1)
	power := graph.ClipScalar(graph.Bitcast(bits, dtypes.Float32), top*0x1p-126, min(top*0x1p126, 0x1p127))
	rounded := Round(graph.Mul(x, graph.Div(graph.Const(g, float32(top)), power)), f)
	rounded = graph.Mul(rounded, graph.DivScalar(power, top))
	return graph.ConvertDType(graph.Where(finite, rounded, x), dtype)
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

func swap(x *graph.Node) *graph.Node { return graph.TransposeAllAxes(x, 0, 2, 1) }
