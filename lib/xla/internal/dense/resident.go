//go:build resident

package dense

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// address returns nil: the kernels are in the process that has the devices, on the same processor.
func address(int) unsafe.Pointer { return nil }

// Bits returns the width of the vectors that the kernels use there.
func Bits() int {
	switch {
	case cpu.X86.HasAVX512F:
		return 512
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return 256
	}
	return 128
}
