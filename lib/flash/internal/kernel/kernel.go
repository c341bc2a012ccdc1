// Package kernel is FlashAttention for XLA's CPU devices, in C: matrix products in registers, and vectors whose lanes
// are queries, so that nothing is ever summed up across lanes. attention.c says what a call is made of, and tile.h has
// the loops, which are compiled for several instruction sets, of which the best is taken when the program runs.
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
	_ "github.com/shardbook/shardbook/internal/half" // whose header attention.c includes, and foreign's
	"github.com/shardbook/shardbook/lib/xla"
	_ "github.com/shardbook/shardbook/lib/xla/foreign"
)

// Forward and Backward are attention and its gradients, as XLA kernels. Their operands and results are what read_call,
// forward and backward in attention.c take them for.
var (
	Forward  = xla.NewKernel("shardbook_flash_forward", C.forward_address())
	Backward = xla.NewKernel("shardbook_flash_backward", C.backward_address())
)

// Bits is a width of vectors.
type Bits int

const (
	Plain Bits = 128 // what every processor has
	AVX2  Bits = 256
	Any   Bits = 512
)

// Limit sets the widest vectors that kernels use, for tests. It must not run while a kernel does.
func Limit(b Bits) { C.shardbook_flash_limit(C.int(b)) }
