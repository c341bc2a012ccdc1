// Package kernel has GELU with a bias and cross-entropy, and their gradients, for XLA's CPU devices, in C.
// kernel.c reads and checks calls; loops.h has the loops. They are compiled for several instruction sets, and the best
// one is chosen at run time.
package kernel

import "unsafe"

// The kernels: names in programs, of kernels that autodiff.Split recomputes, and handlers. The end of kernel.c lists
// their operands and results.
func GELU() (name string, handler unsafe.Pointer) { return "shardbook_cheap_gelu", address(0) }

func GELUGradient() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_gelu_gradient", address(1)
}

func CrossEntropy() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_cross_entropy", address(2)
}

func CrossEntropyGradient() (name string, handler unsafe.Pointer) {
	return "shardbook_cheap_cross_entropy_gradient", address(3)
}
