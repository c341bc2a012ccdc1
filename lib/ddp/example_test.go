package ddp_test

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Two ranks, each a goroutine with a device of its own, train on the halves of each batch, and send gradients while they
// compute others. Processes do the same with mpi.World in the place of group.Run.
func ExampleNewEngine() {
	backend, err := xla.Open(xla.Devices(2), xla.Plugin("cpu"))
	if err != nil {
		panic(err)
	}
	defer backend.Close()
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(0.05)}
	engine, err := ddp.NewEngine(backend, recipe, ddp.Options{Sync: ddp.Overlap})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	if err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		rank, err := engine.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		defer rank.Close()
		for range 3 {
			inputs, targets := toy.Batch(rank.Steps(), 8) // the same on both, which take their rows
			metrics, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := ddp.Mean(ctx, g, metrics.Loss)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("%.3f\n", loss)
			}
		}
		return nil
	}); err != nil {
		panic(err)
	}
	// Output:
	// 0.358
	// 0.334
	// 0.215
}
