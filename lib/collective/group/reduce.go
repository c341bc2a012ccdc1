package group

import "unsafe"

// pointers are addresses of arrays of one length.
type pointers []unsafe.Pointer

// reduce reduces n elements of the sources, in their order, into every destination. A destination may be a source.
//
// Integers wrap. A maximum or minimum with a NaN is NaN, and +0 is more than -0. The 16-bit types are reduced in
// float32 and rounded once, to the nearest and to even in a tie; a mean is divided before that.
func reduce(t Type, op ReduceOp, dsts, srcs pointers, n int) {
	switch t {
	case Float32:
		done := reduceFast(op, dsts, srcs, n)
		reduceAs[float32](op, dsts, srcs, done, n)
	case Float64:
		reduceAs[float64](op, dsts, srcs, 0, n)
	case BFloat16, Float16:
		reduceHalves(t, op, dsts, srcs, n)
	case Int32:
		reduceAs[int32](op, dsts, srcs, 0, n)
	case Int64:
		reduceAs[int64](op, dsts, srcs, 0, n)
	case Uint8:
		reduceAs[uint8](op, dsts, srcs, 0, n)
	}
}

// number is a type that is reduced without conversion.
type number interface {
	float32 | float64 | int32 | int64 | uint8
}

// strip is the number of elements that are reduced at a time without vector instructions:
// their intermediate results fit in the first cache.
const strip = 1024

// reduceAs reduces elements from to n.
func reduceAs[T number](op ReduceOp, dsts, srcs pointers, from, n int) {
	if from >= n {
		return
	}
	var acc [strip]T
	for ; from < n; from += strip {
		a := acc[:min(strip, n-from)]
		copy(a, at[T](srcs[0], from, len(a)))
		for _, src := range srcs[1:] {
			fold(op, a, at[T](src, from, len(a)))
		}
		if op == Mean {
			divide(a, len(srcs))
		}
		for _, dst := range dsts {
			copy(at[T](dst, from, len(a)), a)
		}
	}
}

// reduceHalves reduces n elements of 16 bits.
func reduceHalves(t Type, op ReduceOp, dsts, srcs pointers, n int) {
	var acc, next [strip]float32
	var result [strip]uint16
	for from := 0; from < n; from += strip {
		size := min(strip, n-from)
		a := acc[:size]
		widen(t, a, at[uint16](srcs[0], from, size))
		for _, src := range srcs[1:] {
			widen(t, next[:size], at[uint16](src, from, size))
			foldFloat32(op, a, next[:size])
		}
		if op == Mean {
			divide(a, len(srcs))
		}
		narrow(t, result[:size], a)
		for _, dst := range dsts {
			copy(at[uint16](dst, from, size), result[:])
		}
	}
}

// at is elements from to from+n of an array.
func at[T number | uint16](array unsafe.Pointer, from, n int) []T {
	return unsafe.Slice((*T)(array), from+n)[from:]
}

// fold reduces b into a.
func fold[T number](op ReduceOp, a, b []T) {
	b = b[:len(a)]
	switch op {
	case Sum, Mean:
		for i := range a {
			a[i] += b[i]
		}
	case Product:
		for i := range a {
			a[i] *= b[i]
		}
	case Max:
		for i := range a {
			a[i] = max(a[i], b[i])
		}
	case Min:
		for i := range a {
			a[i] = min(a[i], b[i])
		}
	}
}

// foldFloat32 is fold, with vector instructions where there are any.
func foldFloat32(op ReduceOp, a, b []float32) {
	done := 0
	if op == Sum || op == Mean {
		x, y := unsafe.Pointer(unsafe.SliceData(a)), unsafe.Pointer(unsafe.SliceData(b))
		dst, srcs := [1]unsafe.Pointer{x}, [2]unsafe.Pointer{x, y}
		done = reduceFast(Sum, dst[:], srcs[:], len(a))
	}
	fold(op, a[done:], b[done:])
}

func divide[T number](a []T, by int) {
	for i := range a {
		a[i] /= T(by)
	}
}
