//go:build !amd64

package group

import "unsafe"

// reduceFast reduces as many of n float32 as it has instructions for: none here.
func reduceFast(op ReduceOp, dsts, srcs pointers, n int) int { return 0 }

// move copies n bytes.
func move(dst, src unsafe.Pointer, n int, much bool) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}

// The conversions convert as many elements as there are instructions for: none here.

func widenFast(t Type, dst []float32, src []uint16) int  { return 0 }
func narrowFast(t Type, dst []uint16, src []float32) int { return 0 }
