// Package kernel has GELU with a bias and cross-entropy, and their gradients, for XLA's CPU devices, in C.
// kernel.c reads and checks calls; loops.h has the loops. They are compiled for several instruction sets, and the best
// one is chosen at run time.
package kernel

/*
#cgo CFLAGS: -O3 -Wno-psabi
#cgo LDFLAGS: -lm
void *shardbook_fused_gelu_rows(void *);
void *shardbook_fused_gelu_gradient(void *);
void *shardbook_fused_cross_entropy(void *);
void *shardbook_fused_cross_entropy_gradient(void *);
void shardbook_fused_limit(int);
int shardbook_fused_bits(void);
static void *address(int i) {
	void *all[] = {shardbook_fused_gelu_rows, shardbook_fused_gelu_gradient, shardbook_fused_cross_entropy,
		shardbook_fused_cross_entropy_gradient};
	return all[i];
}
*/
import "C"

import (
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/vector" // whose header loops.h includes
	_ "github.com/shardbook/shardbook/lib/xla/foreign" // whose header kernel.c includes
)

// The kernels: names in programs, of kernels that autodiff.Split recomputes, and handlers. The end of kernel.c lists
// their operands and results.
func GELU() (name string, handler unsafe.Pointer) { return "shardbook_cheap_gelu", C.address(0) }

func GELUGradient() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_gelu_gradient", C.address(1)
}

func CrossEntropy() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_cross_entropy", C.address(2)
}

func CrossEntropyGradient() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_cross_entropy_gradient", C.address(3)
}

// Bits returns the width of the vectors that the kernels use.
func Bits() int { return int(C.shardbook_fused_bits()) }

// Limit has the kernels use vectors of at most that many bits, for tests. Do not call it while a kernel runs.
func Limit(bits int) { C.shardbook_fused_limit(C.int(bits)) }
