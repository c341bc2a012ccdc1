package xla

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// SchedulingBarrier returns the operand, but not before the dependencies are there;
// GoMLX's Checkpoint is made of it. XLA has no such operation, so the operand is
// changed by a nothing that only the dependencies can tell: 0 times a number of each.
//
// go-xla's own adds 0·x, which is NaN where x is infinite, makes +0 of -0, and does
// not work for booleans nor for values of an outer function (docs/upstream.md,
// "scheduling barriers"). Here what is not finite counts as 0, and the nothing is
// subtracted: x-0 is x.
func (f *function) SchedulingBarrier(operand compute.Value, dependencies ...compute.Value) (compute.Value, error) {
	local := f.here(append([]compute.Value{operand}, dependencies...)...)
	operand, dependencies = local[0], local[1:]
	of := hloValue(operand).Shape().DType
	if len(dependencies) == 0 || of.IsComplex() {
		return f.Function.SchedulingBarrier(operand, dependencies...)
	}
	m := &maker{f: f.Function}
	nothing := m.constant([]float32{0})
	zero := m.barrier(nothing) // which the compiler cannot fold
	for _, dependency := range dependencies {
		if hloValue(dependency).Shape().DType.IsComplex() {
			dependency = m.of(f.Function.Real(dependency))
		}
		number := m.convert(m.first(m.barrier(dependency)), dtypes.Float32)
		number = m.of(f.Function.Where(m.of(f.Function.IsFinite(number)), number, zero))
		nothing = m.of(f.Function.Add(nothing, m.of(f.Function.Abs(m.of(f.Function.Mul(number, zero))))))
	}
	as := of
	if of == dtypes.Bool {
		as = dtypes.Uint8
	}
	return m.convert(m.of(f.Function.Sub(m.convert(operand, as), m.convert(nothing, as))), of), m.err
}

// maker makes one value of another until something fails.
type maker struct {
	f   compute.Function
	err error
}

// of notes an operation's error. After one there are no more values.
func (m *maker) of(v compute.Value, err error) compute.Value {
	if m.err == nil {
		m.err = err
	}
	return v
}

func (m *maker) constant(flat any) compute.Value { return m.of(m.f.Constant(flat)) }

func (m *maker) convert(v compute.Value, to dtypes.DType) compute.Value {
	if m.err != nil || hloValue(v).Shape().DType == to {
		return v
	}
	return m.of(m.f.ConvertDType(v, to))
}

func (m *maker) barrier(v compute.Value) compute.Value {
	if m.err != nil {
		return nil
	}
	same, err := m.f.OptimizationBarrier(v)
	if err != nil {
		return m.of(nil, err)
	}
	return same[0]
}

// first is a tensor's first element, as a scalar; 0 of one that has none.
func (m *maker) first(v compute.Value) compute.Value {
	if m.err != nil {
		return nil
	}
	of := hloValue(v).Shape()
	if shapes.Make(of.DType, of.Dimensions...).Size() == 0 {
		return m.constant([]float32{0})
	}
	starts, limits := make([]int, len(of.Dimensions)), make([]int, len(of.Dimensions))
	for i := range limits {
		limits[i] = 1
	}
	if len(limits) > 0 {
		v = m.of(m.f.Slice(v, starts, limits, nil))
	}
	if m.err != nil {
		return nil
	}
	return m.of(m.f.Reshape(v))
}
