//go:build !resident

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

func address(i int) unsafe.Pointer { return C.address(C.int(i)) }

// Bits returns the width of the vectors that the kernels use; 128 where the processor has none that the loops are
// compiled for, and XLA's own code is faster.
func Bits() int { return int(C.shardbook_dense_bits()) }

// Limit has the kernels use vectors of at most that many bits, for tests.
func Limit(bits int) { C.shardbook_dense_limit(C.int(bits)) }
