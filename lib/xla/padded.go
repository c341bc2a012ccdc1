package xla

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// padded writes an all-to-all-v in XLA's operations: an all-to-all of parts of equal lengths, each as long as x.
// Operands are x, and the counts of what is sent and received.
func (f *function) padded(c Collective, operands []compute.Value, groups [][]int) ([]compute.Value, error) {
	x, n := operands[0], len(groups[0])
	of := hloValue(x).Shape().DType
	if of.IsFloat() {
		return f.onBits(c, operands, groups)
	}
	m := &maker{f: f.Function}
	dims := hloValue(x).Shape().Dimensions
	rows := dims[0]
	number := func(i int) compute.Value { return m.constant([]int32{int32(i)}) }
	iota := func(axis int, dims ...int) compute.Value {
		return m.of(m.f.Iota(shapes.Make(dtypes.Int32, dims...), axis))
	}
	add := func(a, b compute.Value) compute.Value { return m.of(m.f.Add(a, b)) }
	lessOrEqual := func(a, b compute.Value) compute.Value { return m.of(m.f.LessOrEqual(a, b)) }
	// masked sums over axis 1 those of the numbers that meet a condition.
	masked := func(where, numbers compute.Value) compute.Value {
		to := shapes.Make(dtypes.Int32, hloValue(where).Shape().Dimensions...)
		all := m.of(m.f.BroadcastInDim(numbers, to, []int{0, 1}))
		none := m.of(m.f.BroadcastInDim(number(0), to, nil))
		return m.of(m.f.ReduceSum(m.of(m.f.Where(where, all, none)), 1))
	}
	// perRank returns the rows for each rank, [1 N], and how many there are up to the end of each, [N].
	perRank := func(counts compute.Value) (each, ends compute.Value) {
		each = m.of(m.f.ReduceSum(m.of(m.f.Reshape(counts, n, hloValue(counts).Shape().Size()/n)), 1))
		each = m.of(m.f.Reshape(each, 1, n))
		return each, masked(lessOrEqual(iota(1, n, n), iota(0, n, n)), each)
	}
	// take returns rows of x by their numbers, which are clamped.
	take := func(x, at compute.Value, count int) compute.Value {
		var offsets []int
		for axis := 1; axis < len(dims); axis++ {
			offsets = append(offsets, axis)
		}
		sizes := slices.Concat([]int{1}, dims[1:])
		at = m.of(m.f.Reshape(at, count, 1))
		return m.of(m.f.Gather(x, at, 1, offsets, []int{0}, []int{0}, sizes, false))
	}

	// A part begins with the rows for its rank; what follows is not used.
	each, ends := perRank(operands[1])
	starts := m.of(m.f.Sub(m.of(m.f.Reshape(ends, n, 1)), m.of(m.f.Reshape(each, n, 1))))
	parts := take(x, add(m.of(m.f.BroadcastInDim(starts, shapes.Make(dtypes.Int32, n, rows), []int{0, 1})),
		iota(1, n, rows)), n*rows)
	if n > 1 && m.err == nil {
		exchanged, err := f.collective(Collective{Kind: AllToAll, Along: c.Along}, []compute.Value{parts}, groups)
		if err != nil {
			return nil, err
		}
		parts = exchanged[0]
	}
	// Row i of the result is row i of the parts, after the unused rows of those that end before it.
	each, ends = perRank(operands[2])
	before := lessOrEqual(m.of(m.f.BroadcastInDim(ends, shapes.Make(dtypes.Int32, c.Rows, n), []int{1})),
		iota(0, c.Rows, n))
	y := take(parts, add(iota(0, c.Rows), masked(before, m.of(m.f.Sub(number(rows), each)))), c.Rows)
	result := shapes.Make(of, slices.Concat([]int{c.Rows}, dims[1:])...)
	wide := func(v compute.Value, axes ...int) compute.Value {
		return m.of(m.f.BroadcastInDim(v, shapes.Make(hloValue(v).Shape().DType, result.Dimensions...), axes))
	}
	zeros := m.of(f.zeros(result))
	if m.err != nil {
		return nil, m.err
	}
	total := m.of(m.f.ReduceSum(each, 0, 1))
	y = m.of(m.f.Where(wide(m.of(m.f.LessThan(iota(0, c.Rows), total)), 0), y, zeros))
	fits := lessOrEqual(total, number(c.Rows))
	y = m.of(m.f.Where(wide(fits), y, m.of(m.f.BitwiseNot(zeros))))
	return append([]compute.Value{y}, operands[1:]...), m.err
}
