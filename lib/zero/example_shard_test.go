package zero_test

import (
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/zero"
)

// ZeRO-3 of three blocks on four ranks, as FSDP with forward and backward prefetch: the parameters of a block are
// gathered (UNSHARD) while the previous block is computed, and freed (RESHARD) after its pass; its gradients are
// reduce-scattered (REDUCE_GRAD) during the next backward pass. 1F0 and 1B0 are the forward and backward pass of block
// 1 for micro-batch 0; U0 is optimizer.step() after micro-batch 0.
func ExampleShard() {
	plan := notebook.Must(step.Parse("plan zero-3 blocks=3\nrank 0: 0F0 1F0 2F0 2B0 1B0 0B0 U0"))
	plan = plan.Replicate(4, "data")
	plan = zero.Shard(plan, 3, 1, 1, "data")
	fmt.Println(plan)
	// Output:
	// plan zero-3 blocks=3 microbatches=1 every=1 weights=flush
	// axis data size=4 groups=0-3
	// units 0-2 reduce=data shard=data
	// ranks 0-3: 0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 1RESHARD 2F0 1UNSHARD 2B0 2RESHARD
	//     2REDUCE_GRAD 0UNSHARD 1B0 1RESHARD 1REDUCE_GRAD WAIT_2REDUCE_GRAD 0B0 0RESHARD 0REDUCE_GRAD
	//     WAIT_1REDUCE_GRAD U0
}

// Two pipelines of two ranks with 1F1B, which share the optimizer states: ZeRO-1. The gradients of a stage are reduced
// once, after the last micro-batch's backward pass, and its new parameters are gathered after the update. Messages
// (SEND_F, RECV_F: activations; SEND_B, RECV_B: gradients) run beside the passes.
func ExampleShard_pipeline() {
	plan, err := pipeline.OneFOneB(2, 3)
	notebook.Check(err)
	if plan, err = plan.WithMessages(); err != nil {
		log.Fatal(err)
	}
	plan = zero.Shard(plan.Replicate(2, "data"), 1, 0, 0, "data")
	fmt.Println(plan)
	// Output:
	// plan 1f1b blocks=2 microbatches=3 every=3 weights=flush
	// axis data size=2 groups=0,2|1,3
	// units 0-1 reduce=data shard=data
	// ranks 0,2: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 WAIT_0SEND_F0 0B0 0RECV_B1 0F2 0SEND_F2 0RECV_B2
	//     WAIT_0SEND_F1 0B1 WAIT_0SEND_F2 0B2 0REDUCE_GRAD2 0U2 0UNSHARD2
	// ranks 1,3: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 WAIT_1SEND_B0 1F2 1B2
	//     1REDUCE_GRAD2 1SEND_B2 1U2 1UNSHARD2
}
