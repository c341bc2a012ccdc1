package residual_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

func check[T any](value T, err error) T {
	notebook.Check(err)
	return value
}

// The input of the second block is sharded over two devices after its forward pass, and gathered before it is
// recomputed.
func ExamplePartition() {
	p := check(step.Parse("schedule one stages=3\nrank 0: 0F0 1F0 2F0 2B0 1B0 0B0 0U0 1U0 2U0"))
	p.Inside("tensor", 2)
	fmt.Print(residual.Partition(recompute.Blocks(p), "tensor"))
	// Output:
	// plan one blocks=3 microbatches=1 every=1 weights=flush
	// axis tensor size=2
	// rank 0: 0F0 1F0 1RESHARD_F0 2F0 2B0 1UNSHARD_F0 1R0 1B0 0R0 0B0 0U0 1U0 2U0
}
