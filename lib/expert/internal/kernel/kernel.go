// Package kernel has matmuls of rows in groups, each with a matrix of its own, for XLA's CPU devices, in C. The loops
// are internal/vector's, compiled for several instruction sets; the best one is chosen at run time. The comment of run
// in grouped.c lists operands and results.
package kernel

import "unsafe"

// ByMatrices returns the kernel that multiplies rows by the matrices of their groups: its name in programs, and its
// handler.
func ByMatrices() (name string, handler unsafe.Pointer) {
	return "shardbook_grouped_matmul", address(0)
}

// ByTransposed returns the same for transposed matrices: the gradient by the rows.
func ByTransposed() (name string, handler unsafe.Pointer) {
	return "shardbook_grouped_matmul_rows", address(1)
}

// ByRows returns the kernel that multiplies the rows of each group, transposed, by others: the gradient by the
// matrices.
func ByRows() (name string, handler unsafe.Pointer) {
	return "shardbook_grouped_matmul_matrices", address(2)
}
