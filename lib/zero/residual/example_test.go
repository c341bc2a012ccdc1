package residual_test

import (
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

func check[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// The input of the second block is divided between two devices behind its forward pass, and gathered before it is
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

// Two checkpoints of 10 bytes are made among temporaries of 30, and then 60 bytes are needed at once.
func ExampleReplay() {
	events := []residual.Event{
		{ID: 1, Bytes: 30}, {ID: 2, Bytes: 10, Long: true}, {ID: 3, Bytes: 30}, {ID: 4, Bytes: 10, Long: true},
		{ID: 1, Free: true}, {ID: 3, Free: true},
		{ID: 5, Bytes: 60},
	}
	r := check(residual.Replay(events, 80))
	fmt.Printf("failed: %v, though %d bytes are free; the largest block has %d\n", r.Failed, r.Free, r.Largest)
	r = check(residual.Replay(check(residual.WithRegion(events)), 80))
	fmt.Printf("with a region failed: %v\n", r.Failed)
	// Output:
	// failed: true, though 60 bytes are free; the largest block has 30
	// with a region failed: false
}
