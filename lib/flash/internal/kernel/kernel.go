package kernel

/*
#cgo CFLAGS: -O3 -Wno-psabi
void *shardbook_flash_forward(void *);
void *shardbook_flash_backward(void *);
static void *forward_address(void) { return shardbook_flash_forward; }
static void *backward_address(void) { return shardbook_flash_backward; }
*/
import "C"

import "github.com/shardbook/shardbook/lib/xla"

// Forward and Backward are attention and its gradients, as XLA kernels. Their operands and results are those of
// read_call, forward and backward in attention.c.
var (
	Forward  = xla.NewKernel("shardbook_flash_forward", C.forward_address())
	Backward = xla.NewKernel("shardbook_flash_backward", C.backward_address())
)
