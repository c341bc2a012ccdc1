// Package kernel is FlashAttention for XLA's CPU devices, in C. Matmuls accumulate in registers, and the lanes of
// vectors are queries, so that no reduction crosses lanes. attention.c reads and checks calls; tile.h has the loops.
// They are compiled for several instruction sets, and the best one is chosen at run time.
package kernel

import "github.com/shardbook/shardbook/lib/xla"

// Forward and Backward are attention and its gradients as XLA kernels. The functions read_call, forward and backward in
// attention.c define their operands and results.
var (
	Forward  = xla.NewKernel("shardbook_flash_forward", address(0))
	Backward = xla.NewKernel("shardbook_flash_backward", address(1))
)
