package mpi_test

import (
	"context"
	"fmt"
	"os"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/notebook"
)

// The same function runs under mpirun and, with group.Run, on goroutines.
func Example() {
	average := func(ctx context.Context, g group.Group) error {
		gradient := []float32{float32(g.Rank()), 1}
		return group.AllReduce(ctx, g, gradient, group.Mean)
	}
	world, err := mpi.World()
	notebook.Check(err)
	err = average(context.Background(), world)
	if err != nil {
		fmt.Println(err)
	}
	if closed := world.Close(); err != nil || closed != nil {
		os.Exit(1)
	}
}
