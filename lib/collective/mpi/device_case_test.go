//go:build mpi

package mpi_test

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
)

func init() { cases["devices"] = onDevices }

// onDevices has each process compute on a device of its own, the ranks reduce what
// lies in the devices' memory where it is, and the devices go on from there.
func onDevices(ctx context.Context, r *rank) error {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		return err
	}
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis("here", 1))
	if err != nil {
		return err
	}
	double, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.MulScalar(x, 2) },
		xla.In(xla.Replicated()).Gives(xla.Replicated()))
	if err != nil {
		return err
	}
	defer double.Close()
	values := make([]float32, 100_000)
	for i := range values {
		values[i] = float32(r.Rank() + 1 + i%100)
	}
	out, err := double.Call(values)
	if err != nil {
		return err
	}
	memory, err := xla.View[float32](out[0].Shards()[0])
	if err != nil {
		return err
	}
	if err := group.AllReduce(ctx, r, memory, group.Sum); err != nil {
		return err
	}
	again, err := double.Call(out[0])
	if err != nil {
		return err
	}
	result, err := xla.View[float32](again[0].Shards()[0])
	if err != nil {
		return err
	}
	n := r.Size()
	for i, got := range result {
		if want := float32(2 * 2 * (n*(n+1)/2 + n*(i%100))); got != want {
			return fmt.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
	return nil
}
