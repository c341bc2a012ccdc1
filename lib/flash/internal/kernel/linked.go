//go:build !resident

package kernel

/*
#cgo CFLAGS: -O3 -Wno-psabi
void *shardbook_flash_forward(void *);
void *shardbook_flash_backward(void *);
void shardbook_flash_limit(int);
static void *address(int i) { return i ? (void *)shardbook_flash_backward : (void *)shardbook_flash_forward; }
*/
import "C"

import (
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/vector" // whose headers attention.c includes, and foreign's
	_ "github.com/shardbook/shardbook/lib/xla/foreign"
)

func address(i int) unsafe.Pointer { return C.address(C.int(i)) }

// Bits is the width of vectors.
type Bits int

const (
	Plain Bits = 128 // on every processor
	AVX2  Bits = 256
	Any   Bits = 512
)

// Limit sets the widest vectors that kernels use, for tests. Do not call it while a kernel runs.
func Limit(b Bits) { C.shardbook_flash_limit(C.int(b)) }
