// Package dense has matmuls and sums of columns for XLA's CPU devices, in C. matmul.c reads and checks calls; tile.h
// has the loops. They are compiled for several instruction sets, and the best one is chosen at run time.
package dense

/*
#cgo CFLAGS: -O3 -Wno-psabi
#cgo LDFLAGS: -lm
void *shardbook_matmul_nn(void *);
void *shardbook_matmul_nt(void *);
void *shardbook_matmul_tn(void *);
void *shardbook_matmul_tt(void *);
void *shardbook_column_sums(void *);
void shardbook_dense_limit(int);
int shardbook_dense_bits(void);
static void *address(int i) {
	void *all[] = {shardbook_matmul_nn, shardbook_matmul_nt, shardbook_matmul_tn, shardbook_matmul_tt,
		shardbook_column_sums};
	return all[i];
}
*/
import "C"

import (
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/vector" // whose headers matmul.c includes, and foreign's
)

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
	return name, C.address(C.int(i))
}

// ColumnSums returns the kernel that sums over leading axes.
func ColumnSums() (name string, handler unsafe.Pointer) { return "shardbook_column_sums", C.address(4) }

// Bits returns the width of the vectors that the kernels use; 128 where the processor has none that the loops are
// compiled for, and XLA's own code is faster.
func Bits() int { return int(C.shardbook_dense_bits()) }

// Limit has the kernels use vectors of at most that many bits, for tests.
func Limit(bits int) { C.shardbook_dense_limit(C.int(bits)) }
