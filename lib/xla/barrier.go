package xla

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// SchedulingBarrier returns the operand, to be computed after the dependencies; GoMLX's Checkpoint uses it. XLA has no
// such operation. So this multiplies a number x of each dependency by a 0 that the compiler cannot fold, and subtracts
// the products from the operand.
//
// go-xla's own adds 0·x, which is NaN if x is infinite, turns -0 into +0, and does not work for booleans or for values
// of an outer function (docs/upstream.md, "scheduling barriers"). Here an x that is not finite counts as 0.
func (f *function) SchedulingBarrier(operand compute.Value, dependencies ...compute.Value) (compute.Value, error) {
	local := f.here(append([]compute.Value{operand}, dependencies...)...)
	operand, dependencies = local[0], local[1:]
	of := hloValue(operand).Shape().DType
	if len(dependencies) == 0 || of.IsComplex() {
		return f.Function.SchedulingBarrier(operand, dependencies...)
	}
	m := &maker{f: f.Function}
	zero := m.constant([]float32{0})
	opaque := m.barrier(zero) // a 0 that the compiler cannot fold
	for _, dependency := range dependencies {
		if hloValue(dependency).Shape().DType.IsComplex() {
			dependency = m.of(f.Function.Real(dependency))
		}
		number := m.convert(m.first(m.barrier(dependency)), dtypes.Float32)
		number = m.of(f.Function.Where(m.of(f.Function.IsFinite(number)), number, opaque))
		zero = m.of(f.Function.Add(zero, m.of(f.Function.Abs(m.of(f.Function.Mul(number, opaque))))))
	}
	as := of
	if of == dtypes.Bool {
		as = dtypes.Uint8
	}
	return m.convert(m.of(f.Function.Sub(m.convert(operand, as), m.convert(zero, as))), of), m.err
}

// maker builds values one from another until an error.
type maker struct {
	f   compute.Function
	err error
}

// of records an operation's error.
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

// first returns a tensor's first element, as a scalar; 0 if it has none.
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
