package group_test

import (
	"context"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
)

// Ranks reduce what lies in their devices' memory, where it is, and the next program on the devices sees it.
func TestInPlaceOnDevices(t *testing.T) {
	const ranks, n = 4, 1000
	mesh, err := devicetest.Open(t, ranks).Mesh(xla.Axis("data", ranks))
	if err != nil {
		t.Fatal(err)
	}
	sharded := xla.Shard(0, "data")
	double, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.MulScalar(x, 2) },
		xla.In(sharded).Gives(sharded))
	if err != nil {
		t.Fatal(err)
	}
	defer double.Close()
	values := make([]float32, ranks*n)
	for i := range values {
		values[i] = float32(i/n + 1 + i%n)
	}
	run := func(x any) []float32 {
		out, err := double.Call(x)
		if err != nil {
			t.Fatal(err)
		}
		err = group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
			gradients, err := xla.View[float32](out[0].Shards()[g.Rank()])
			if err != nil {
				return err
			}
			return group.AllReduce(ctx, g, gradients, group.Sum)
		})
		if err != nil {
			t.Fatal(err)
		}
		again, err := double.Call(out[0])
		if err != nil {
			t.Fatal(err)
		}
		last, err := xla.View[float32](again[0].Shards()[ranks-1])
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	for i, got := range run(values) {
		if want := float32(2 * 2 * (1 + 2 + 3 + 4 + ranks*i)); got != want {
			t.Fatalf("element %d is %g, want %g", i, got, want)
		}
	}
}
