package ddp_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/step"
)

// DistributedDataParallel with four blocks of a parameter each on four ranks. Gradients are in buckets of two, the last
// parameters in the first bucket, whose all-reduce (REDUCE_GRAD) overlaps the other blocks' backward passes. 1F0 and
// 1B0 are the forward and backward pass of block 1 for micro-batch 0; U0 is optimizer.step().
func ExampleAverage() {
	plan := notebook.Must(step.Parse("plan ddp blocks=4\nrank 0: 0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0 U0"))
	plan = plan.Replicate(4, "data")
	parameters, bytes := [][]int{{0}, {1}, {2}, {3}}, []int64{10, 10, 10, 10} // of each unit; of each parameter
	plan, _ = ddp.IntoBuckets(plan, parameters, bytes, 20)
	fmt.Println(ddp.Average(plan, true, false))
	// Output:
	// plan ddp blocks=4 units=2 microbatches=1 every=1 weights=flush
	// axis data size=4 groups=0-3
	// unit 0 bucket0 reduce=data
	// unit 1 bucket1 reduce=data
	// blocks 0-1 units=1
	// blocks 2-3 units=0
	// ranks 0-3: 0F0 1F0 2F0 3F0 3B0 2B0 0REDUCE_GRAD 1B0 0B0 1REDUCE_GRAD U0
}
