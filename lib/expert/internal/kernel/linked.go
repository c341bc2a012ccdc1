//go:build !resident

package kernel

/*
#cgo CFLAGS: -O3 -Wno-psabi
#cgo LDFLAGS: -lm
void *shardbook_grouped_by_matrices(void *);
void *shardbook_grouped_by_turned(void *);
void *shardbook_grouped_by_rows(void *);
void shardbook_grouped_limit(int);
int shardbook_grouped_bits(void);
static void *address(int i) {
	void *all[] = {shardbook_grouped_by_matrices, shardbook_grouped_by_turned, shardbook_grouped_by_rows};
	return all[i];
}
*/
import "C"

import (
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/vector" // whose headers grouped.c includes, and foreign's
)

func address(i int) unsafe.Pointer { return C.address(C.int(i)) }

// Bits returns the width of the vectors that the kernels use.
func Bits() int { return int(C.shardbook_grouped_bits()) }

// Limit has the kernels use vectors of at most that many bits, for tests. Do not call it while a kernel runs.
func Limit(bits int) { C.shardbook_grouped_limit(C.int(bits)) }
