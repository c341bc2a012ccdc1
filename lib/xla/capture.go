package xla

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/go-xla/stablehlo"
)

// A closure may use values of the functions around it. go-xla supports that for most operations, but not for binary
// ones, nor for results (docs/upstream.md, "captured values"). So such values get a name in the closure.

// here returns the values as values of f, whichever function around f they belong to.
func (f *function) here(values ...value) []value {
	local := make([]value, len(values))
	for i, v := range values {
		local[i] = into(hloFunction(f.Function), v)
	}
	return local
}

// into returns a value of a function around a closure as one of the closure; other values are returned unchanged, and
// go-xla rejects those of no function around it.
func into(closure *stablehlo.Function, v value) value {
	hlo := hloValue(v)
	if functionOf(hlo) == closure || closure.Parent == nil {
		return v
	}
	named, err := closure.UseParentValue(hlo)
	if err != nil {
		return v
	}
	return newValue(v, named)
}

type value = compute.Value

// binary does an operation in the inner one of its operands' functions, as go-xla does unary ones and GoMLX expects.
func (f *function) binary(op func(a, b value) (value, error), a, b value) (value, error) {
	a = into(functionOf(hloValue(b)), a)
	return op(a, into(functionOf(hloValue(a)), b))
}

func (f *function) Add(a, b value) (value, error)     { return f.binary(f.Function.Add, a, b) }
func (f *function) Sub(a, b value) (value, error)     { return f.binary(f.Function.Sub, a, b) }
func (f *function) Mul(a, b value) (value, error)     { return f.binary(f.Function.Mul, a, b) }
func (f *function) Div(a, b value) (value, error)     { return f.binary(f.Function.Div, a, b) }
func (f *function) Rem(a, b value) (value, error)     { return f.binary(f.Function.Rem, a, b) }
func (f *function) Pow(a, b value) (value, error)     { return f.binary(f.Function.Pow, a, b) }
func (f *function) Max(a, b value) (value, error)     { return f.binary(f.Function.Max, a, b) }
func (f *function) Min(a, b value) (value, error)     { return f.binary(f.Function.Min, a, b) }
func (f *function) Atan2(a, b value) (value, error)   { return f.binary(f.Function.Atan2, a, b) }
func (f *function) Complex(a, b value) (value, error) { return f.binary(f.Function.Complex, a, b) }
func (f *function) BitwiseAnd(a, b value) (value, error) {
	return f.binary(f.Function.BitwiseAnd, a, b)
}
func (f *function) BitwiseOr(a, b value) (value, error) { return f.binary(f.Function.BitwiseOr, a, b) }
func (f *function) BitwiseXor(a, b value) (value, error) {
	return f.binary(f.Function.BitwiseXor, a, b)
}
func (f *function) LogicalAnd(a, b value) (value, error) {
	return f.binary(f.Function.LogicalAnd, a, b)
}
func (f *function) LogicalOr(a, b value) (value, error) { return f.binary(f.Function.LogicalOr, a, b) }
func (f *function) LogicalXor(a, b value) (value, error) {
	return f.binary(f.Function.LogicalXor, a, b)
}
func (f *function) ShiftLeft(a, b value) (value, error) { return f.binary(f.Function.ShiftLeft, a, b) }
func (f *function) ShiftRightArithmetic(a, b value) (value, error) {
	return f.binary(f.Function.ShiftRightArithmetic, a, b)
}

func (f *function) ShiftRightLogical(a, b value) (value, error) {
	return f.binary(f.Function.ShiftRightLogical, a, b)
}
