package zero_test

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// Stage 3 on two devices, as one program: each holds half of all, and gathers the three blocks' parameters for each of their
// passes. (The first block's backward pass turns out not to need them.)
func ExampleNew() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	backend, err := xla.Open(xla.Devices(2))
	must(err)
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 2))
	must(err)
	recipe := train.Recipe{Model: deep(3, 8), Rule: optim.Adam(1e-3)}
	run, err := zero.New(mesh, recipe, zero.Options{Stage: 3})
	must(err)
	defer run.Close()
	x := tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}})
	_, err = run.Step(context.Background(), x, x)
	must(err)
	report, err := run.Collectives()
	must(err)
	fmt.Println(run.Bytes()[memest.Parameters], "of", recipe.Model.Params().Bytes(), "bytes of parameters")
	fmt.Println(report)
	// Output:
	// 384 of 768 bytes of parameters
	// all-reduce ×1, 4 B; all-gather ×5, 1.2 KiB; reduce-scatter ×3, 768 B
}

// The same by two ranks, each a goroutine with a device and programs of its own. They may as well be processes on two
// hosts (lib/collective/mpi).
func ExampleNewEngine() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	backend, err := xla.Open(xla.Devices(2))
	must(err)
	defer backend.Close()
	recipe := train.Recipe{Model: deep(3, 8), Rule: optim.Adam(1e-3)}
	engine, err := zero.NewEngine(backend, recipe, zero.Options{Stage: 3, Prefetch: 1})
	must(err)
	defer engine.Close()
	x := tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}})
	must(group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		rank, err := engine.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		defer rank.Close()
		if _, err := rank.Step(ctx, x, x); err != nil {
			return err
		}
		if g.Rank() == 0 {
			held := rank.Bytes()
			delete(held, memest.Communication) // how much is whole at once depends on how fast it comes
			fmt.Println(held)
		}
		return nil
	}))
	// Output: map[gradients:384 optimizer:768 parameters:384]
}
