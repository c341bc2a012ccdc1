// Package dense has matmuls and sums of columns for XLA's CPU devices, in C. matmul.c reads and checks calls;
// internal/vector and columns.h have the loops. They are compiled for several instruction sets, and the best one is
// chosen at run time.
package dense

import "unsafe"

// Matmul returns the kernel A·B, or A·B plus a bias, for A stored as it is (m,k) or transposed (k,m), and B as it is
// (k,n) or transposed (n,k). Its name in programs is "shardbook_matmul_" and n or t for each.
func Matmul(aTransposed, bTransposed bool) (name string, handler unsafe.Pointer) {
	i, name := 0, "shardbook_matmul_"
	for _, transposed := range []bool{aTransposed, bTransposed} {
		i *= 2
		if transposed {
			i, name = i+1, name+"t"
		} else {
			name += "n"
		}
	}
	return name, address(i)
}

// ColumnSums returns the kernel that sums over leading axes.
func ColumnSums() (name string, handler unsafe.Pointer) { return "shardbook_column_sums", address(4) }
