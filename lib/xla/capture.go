package xla

import "github.com/gomlx/compute"

// A closure may use values of the functions around it. go-xla supports that for most operations, but not for binary
// ones, nor for results (docs/upstream.md, "captured values"). So such values get a name in the closure.

// here returns the values as values of f, whichever function around f they belong to.
func (f *function) here(values ...compute.Value) []compute.Value {
	if f.parent == nil {
		return values
	}
	local := make([]compute.Value, len(values))
	for i, v := range values {
		local[i] = v
		fn := hloFunction(f.Function)
		if hlo := hloValue(v); functionOf(hlo) != fn {
			// go-xla rejects a value that does not belong to a function around f.
			if named, err := fn.UseParentValue(hlo); err == nil {
				local[i] = newValue(v, named)
			}
		}
	}
	return local
}

type binary func(a, b compute.Value) (compute.Value, error)

// binary does an operation in the inner one of its operands' functions, as go-xla does unary ones and GoMLX expects.
func (f *function) binary(op binary, a, b compute.Value) (compute.Value, error) {
	x, y := hloValue(a), hloValue(b)
	if inner := functionOf(y); functionOf(x) != inner && inner.Parent != nil {
		if named, err := inner.UseParentValue(x); err == nil {
			return op(newValue(a, named), b)
		}
	}
	if inner := functionOf(x); functionOf(y) != inner && inner.Parent != nil {
		if named, err := inner.UseParentValue(y); err == nil {
			return op(a, newValue(b, named))
		}
	}
	return op(a, b)
}

func (f *function) Add(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Add, a, b)
}

func (f *function) Sub(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Sub, a, b)
}

func (f *function) Mul(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Mul, a, b)
}

func (f *function) Div(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Div, a, b)
}

func (f *function) Rem(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Rem, a, b)
}

func (f *function) Pow(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Pow, a, b)
}

func (f *function) Max(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Max, a, b)
}

func (f *function) Min(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Min, a, b)
}

func (f *function) Atan2(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Atan2, a, b)
}

func (f *function) Complex(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.Complex, a, b)
}

func (f *function) BitwiseAnd(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.BitwiseAnd, a, b)
}

func (f *function) BitwiseOr(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.BitwiseOr, a, b)
}

func (f *function) BitwiseXor(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.BitwiseXor, a, b)
}

func (f *function) LogicalAnd(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.LogicalAnd, a, b)
}

func (f *function) LogicalOr(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.LogicalOr, a, b)
}

func (f *function) LogicalXor(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.LogicalXor, a, b)
}

func (f *function) ShiftLeft(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.ShiftLeft, a, b)
}

func (f *function) ShiftRightArithmetic(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.ShiftRightArithmetic, a, b)
}

func (f *function) ShiftRightLogical(a, b compute.Value) (compute.Value, error) {
	return f.binary(f.Function.ShiftRightLogical, a, b)
}
