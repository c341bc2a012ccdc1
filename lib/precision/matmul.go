package precision

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
)

// Matmul says how products are computed, as plain data to compare and to store. The zero Matmul takes the operands in
// their own type, adds up in float32 (where that type is a half type), and has the gradients' products in that type
// too.
type Matmul struct {
	// Operands is a format that both operands are rounded to before each product; none leaves them as they are. They
	// stay in their type, which should be wide enough for the format.
	Operands Format `json:"operands,omitzero"`
	// Gradients is a format that the arriving gradient is rounded to before its two products, with the operands rounded
	// to Operands; none leaves it as it is.
	Gradients Format `json:"gradients,omitzero"`
	// Scaled multiplies each tensor by a power of two, at most 2¹²⁶, before it is rounded, and divides by it after, so
	// that its largest finite magnitude lies between a quarter and a half of the power of two beyond the format's
	// largest number (per-tensor scaling, Micikevicius et al. 2022). Infinities and NaN stay, whatever the format's
	// Overflow, and a number that is rounded beyond the largest of the tensor's type becomes infinite. Formats of
	// float32's range (FP32, TF32 and BF16) are not scaled. Under SPMD each device takes the largest of its own shard.
	Scaled bool `json:"scaled,omitempty"`
	// Accumulate is a format that sums are rounded to as they grow, in the gradients' products too: after every Chunk
	// products, in the axes' order, the sum of these is rounded, added, and the new sum rounded. None is float32.
	// This is there to show what such sums do; it makes a graph of one addition for each chunk.
	Accumulate Format `json:"accumulate,omitzero"`
	// Chunk is how many products are summed in float32 before a rounding; 1 is the format's own arithmetic.
	Chunk int `json:"chunk,omitempty"`
}

// Validate returns an error that names the first setting which is not valid.
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
		return fmt.Errorf("precision: Matmul.Chunk is %d, but no format is set to Accumulate in: set it, or Chunk to 0",
			m.Chunk)
	}
	return nil
}

// Dot returns graph.DotGeneral's product: lhs and rhs, of one float type, are multiplied and summed over the
// contracting axes, for each index of the batch axes. The result, of the operands' type, has the axes (batch…, the
// other axes of lhs…, the other axes of rhs…). Negative axes count from the end. It panics if m is not valid or the
// shapes do not fit.
//
// graph.DotGeneral itself computes the gradients of products of half types in float32, and wrong ones where both
// operands contract several axes and do not list them from the first to the last.
//
// Unless m is zero and the axes to contract are in order, an operand that depends on nothing whose gradient is asked
// for, and was made with an operation without a gradient (Floor, Sort, ArgMax, While), must come through
// graph.StopGradient; [autodiff.Custom] says why.
func (m Matmul) Dot(lhs *graph.Node, lhsContracting, lhsBatch []int, rhs *graph.Node,
	rhsContracting, rhsBatch []int) *graph.Node {
	lhsContracting, lhsBatch = axes(lhs, lhsContracting), axes(lhs, lhsBatch)
	rhsContracting, rhsBatch = axes(rhs, rhsContracting), axes(rhs, rhsBatch)
	if m == (Matmul{}) && slices.IsSorted(lhsContracting) && slices.IsSorted(rhsContracting) {
		return product(lhs, lhsContracting, lhsBatch, rhs, rhsContracting, rhsBatch)
	}
	if err := m.Validate(); err != nil {
		panic(err)
	}
	l, of := flatten(lhs, lhsContracting, lhsBatch)
	r, other := flatten(rhs, rhsContracting, rhsBatch)
	if !slices.Equal(of.batch, other.batch) || !slices.Equal(of.contracting, other.contracting) {
		panic(fmt.Errorf("precision: axes of %v and %v to contract, of %v and %v as batches: they must be "+
			"equal in both operands",
			of.contracting, other.contracting, of.batch, other.batch))
	}
	y := autodiff.Custom([]*graph.Node{l, r},
		func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{m.rows(m.round(in[0], m.Operands), m.round(in[1], m.Operands))}
		},
		func(in, _, v []*graph.Node) []*graph.Node {
			l, r, dy := m.round(in[0], m.Operands), m.round(in[1], m.Operands), m.round(v[0], m.Gradients)
			return []*graph.Node{m.rows(dy, swap(r)), m.rows(swap(dy), swap(l))}
		})[0]
	return graph.Reshape(y, slices.Concat(of.batch, of.free, other.free)...)
}

// product is the backend's own, whose gradient GoMLX computes in the type of the result.
func product(lhs *graph.Node, lhsContracting, lhsBatch []int, rhs *graph.Node,
	rhsContracting, rhsBatch []int) *graph.Node {
	return graph.Dot(lhs, rhs).WithAccumulatorDType(dtypes.InvalidDType).General(lhsContracting, lhsBatch,
		rhsContracting, rhsBatch)
}

// rows returns the products of the rows of a (B,M,K) and b (B,N,K), (B,M,N).
func (m Matmul) rows(a, b *graph.Node) *graph.Node {
	if m.Accumulate == (Format{}) {
		return product(a, []int{2}, []int{0}, b, []int{2}, []int{0})
	}
	dtype := a.DType()
	y := m.addUp(product(m.chunks(a), []int{3}, []int{1, 0}, m.chunks(b), []int{3}, []int{1, 0}))
	return graph.ConvertDType(y, dtype)
}

// chunks cuts the last axis of x (B,M,K) into pieces: (B,⌈K/Chunk⌉,M,min(Chunk,K)) in float32, with zeros behind the
// last.
func (m Matmul) chunks(x *graph.Node) *graph.Node {
	d := x.Shape().Dimensions
	chunk := min(m.Chunk, d[2])
	n := (d[2] + chunk - 1) / chunk
	x = graph.ConvertDType(x, dtypes.Float32)
	x = graph.Pad(x, graph.Const(x.Graph(), float32(0)), graph.PadAxis{}, graph.PadAxis{},
		graph.PadAxis{End: n*chunk - d[2]})
	return graph.TransposeAllAxes(graph.Reshape(x, d[0], d[1], n, chunk), 0, 2, 1, 3)
}

// addUp adds the slices of x along its first axis, one after another.
func (m Matmul) addUp(x *graph.Node) *graph.Node {
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

// round rounds an operand, if there is a format to round it to.
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
	// The power of two at or below the largest magnitude, bounded so that float32 has both quotients; for zeros any
	// will do.
	largest := graph.ReduceAllMax(graph.Abs(graph.Where(finite, x, graph.ZerosLike(x))))
	bits := graph.BitwiseAnd(graph.Bitcast(largest, dtypes.Uint32), graph.Const(g, uint32(0x7f800000)))
	top := math.Exp2(math.Floor(math.Log2(f.Largest())) - 1)
	power := graph.ClipScalar(graph.Bitcast(bits, dtypes.Float32), top*0x1p-126, min(top*0x1p126, 0x1p127))
	rounded := Round(graph.Mul(x, graph.Div(graph.Const(g, float32(top)), power)), f)
	rounded = graph.Mul(rounded, graph.DivScalar(power, top))
	return graph.ConvertDType(graph.Where(finite, rounded, x), dtype)
}

// dimensions are a tensor's, by what a product does with its axes.
type dimensions struct{ batch, free, contracting []int }

// flatten returns x with its axes in the order batch, free, contracting, and each kind joined to one axis.
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

// axes numbers axes from the first.
func axes(x *graph.Node, of []int) []int {
	adjusted := make([]int, len(of))
	for i, axis := range of {
		adjusted[i] = graph.MustAdjustAxis(axis, x)
		if slices.Contains(adjusted[:i], adjusted[i]) {
			panic(fmt.Errorf("precision: axes %v of a product name one twice", of))
		}
	}
	return adjusted
}

func swap(x *graph.Node) *graph.Node { return graph.TransposeAllAxes(x, 0, 2, 1) }
