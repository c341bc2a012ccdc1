//go:build !resident

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

func address(i int) unsafe.Pointer { return C.address(C.int(i)) }

// Bits returns the width of the vectors that the kernels use.
func Bits() int { return int(C.shardbook_fused_bits()) }

// Limit has the kernels use vectors of at most that many bits, for tests. Do not call it while a kernel runs.
func Limit(bits int) { C.shardbook_fused_limit(C.int(bits)) }
