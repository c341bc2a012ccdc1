package ddp_test

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Two ranks, each with a device of its own, train on the halves of each batch, and send gradients while they compute
// others. Processes do the same by Join, with mpi.World as their group.
func ExampleNew() {
	backend := notebook.Must(xla.Open(xla.Devices(2), xla.Plugin("cpu")))
	defer backend.Close()
	ctx := context.Background()
	run := notebook.Must(ddp.New(ctx, backend, train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(0.05)}, 2,
		ddp.Options{Sync: ddp.Overlap}))
	defer run.Close()
	for range 3 {
		inputs, targets := toy.Batch(run.Steps(), 8)
		metrics := notebook.Must(run.Step(ctx, inputs, targets))
		fmt.Printf("%.3f\n", metrics.Loss)
	}
	// Output:
	// 0.358
	// 0.334
	// 0.215
}

// A layer's gradients are reduced as soon as its backward pass has ended, where they fill a bucket.
func ExampleOptions_Plan() {
	recipe := train.Recipe{Model: toy.Layers(4, false), Optimizer: optim.AdamW(0.05)}
	plan := notebook.Must(ddp.Options{BucketBytes: 200}.Plan(recipe, 2))
	fmt.Print(plan)
	// Output:
	// plan ddp blocks=4 microbatches=1 every=1 weights=flush
	// axis replica size=2 groups=0-1
	// unit 0 bucket0 reduce=replica
	// unit 1 bucket1 reduce=replica
	// unit 2 bucket2 reduce=replica
	// unit 3 bucket3 reduce=replica
	// block 0 in units=2-3
	// block 1 h0 units=1-2
	// block 2 h1 units=0-1
	// block 3 out units=0
	// ranks 0-1: 0F0 1F0 2F0 3F0 3B0 2B0 0REDUCE_GRAD 1B0 1REDUCE_GRAD 0B0 2REDUCE_GRAD 3REDUCE_GRAD U0
}
