// Package kernel is FlashAttention for XLA's CPU devices, in C. Matmuls accumulate in registers, and the lanes of
// vectors are queries, so that no reduction crosses lanes. attention.c reads and checks calls; tile.h has the loops.
// They are compiled for several instruction sets, and the best one is chosen at run time.
package kernel

/*
#cgo CFLAGS: -O3 -Wno-psabi
void *shardbook_flash_forward(void *);
void *shardbook_flash_backward(void *);
void shardbook_flash_limit(int);
static void *forward_address(void) { return shardbook_flash_forward; }
static void *backward_address(void) { return shardbook_flash_backward; }
*/
import "C"

import (
	_ "github.com/shardbook/shardbook/internal/vector" // whose headers attention.c includes, and foreign's
	"github.com/shardbook/shardbook/lib/xla"
	_ "github.com/shardbook/shardbook/lib/xla/foreign"
)

// Forward and Backward are attention and its gradients as XLA kernels. The functions read_call, forward and backward in
// attention.c define their operands and results.
var (
	Forward  = xla.NewKernel("shardbook_flash_forward", C.forward_address())
	Backward = xla.NewKernel("shardbook_flash_backward", C.backward_address())
)

// Bits is the width of vectors.
type Bits int

const (
	Plain Bits = 128 // on every processor
	AVX2  Bits = 256
	Any   Bits = 512
)

// Limit sets the widest vectors that kernels use, for tests. Do not call it while a kernel runs.
func Limit(b Bits) { C.shardbook_flash_limit(C.int(b)) }
