package group

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var hasAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasF16C

// sumFloat32 adds n elements of the sources in order, divides the sums by divisor unless that is 0, and writes them to
// every destination. n is a multiple of 32, and there is at least one source.
//
//go:noescape
func sumFloat32(dsts *unsafe.Pointer, dstCount int, srcs *unsafe.Pointer, srcCount int, n int, divisor float32)

// stream copies n bytes past the caches. dst lies at a multiple of 32, and n is a multiple of 128.
//
//go:noescape
func stream(dst, src unsafe.Pointer, n int)

// reduceFast reduces as many of n float32 as it has instructions for, and says how many.
func reduceFast(op ReduceOp, dsts, srcs pointers, n int) int {
	n &^= 31
	if !hasAVX2 || n == 0 || op != Sum && op != Mean {
		return 0
	}
	divisor := float32(0)
	if op == Mean {
		divisor = float32(len(srcs))
	}
	sumFloat32(unsafe.SliceData(dsts), len(dsts), unsafe.SliceData(srcs), len(srcs), n, divisor)
	return n
}

// move copies n bytes; past the caches if they are much.
func move(dst, src unsafe.Pointer, n int, much bool) {
	to, from := unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n)
	if !much || !hasAVX2 || n < 256 {
		copy(to, from)
		return
	}
	head := int(-uintptr(dst) & 31)
	body := (n - head) &^ 127
	copy(to[:head], from)
	stream(unsafe.Add(dst, head), unsafe.Add(src, head), body)
	copy(to[head+body:], from[head+body:])
}

// The kernels below convert n elements, a multiple of 16.

//go:noescape
func widenBFloat16s(dst, src unsafe.Pointer, n int)

//go:noescape
func narrowBFloat16s(dst, src unsafe.Pointer, n int)

//go:noescape
func widenFloat16s(dst, src unsafe.Pointer, n int)

//go:noescape
func narrowFloat16s(dst, src unsafe.Pointer, n int)

// widenFast widens as many numbers as there are instructions for, and says how many.
func widenFast(t Type, dst []float32, src []uint16) int {
	if t == BFloat16 {
		return convert(widenBFloat16s, dst, src)
	}
	return convert(widenFloat16s, dst, src)
}

// narrowFast narrows as many numbers as there are instructions for, and says how many.
func narrowFast(t Type, dst []uint16, src []float32) int {
	if t == BFloat16 {
		return convert(narrowBFloat16s, dst, src)
	}
	return convert(narrowFloat16s, dst, src)
}

// convert converts as many elements as a kernel can, and says how many.
func convert[To, From any](kernel func(dst, src unsafe.Pointer, n int), dst []To, src []From) int {
	n := len(src) &^ 15
	if !hasAVX2 || n == 0 {
		return 0
	}
	kernel(unsafe.Pointer(&dst[:n][0]), unsafe.Pointer(&src[0]), n)
	return n
}
