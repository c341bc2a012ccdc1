package ddp_test

import (
	"context"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// loads are what a rank's messages of the second step have, for each rank. (What a step reports of the loss goes
// besides.)
func loads(t *testing.T, world int, o ddp.Options) []plan.Load {
	t.Helper()
	backend := devicetest.Open(t, 8)
	loads := make([]plan.Load, world)
	must.Do(t, group.Run(context.Background(), world, func(ctx context.Context, inner group.Group) error {
		g := group.Count(inner)
		rank, err := ddp.Join(ctx, g, backend, g.Rank(), train.Recipe{Model: toy.Model(false),
			Optimizer: optim.SGD(0.1)}, o)
		if err != nil {
			return err
		}
		for range 2 {
			inputs, targets := toy.Batch(0, 2*world)
			before := g.Total()
			if _, err := rank.Step(ctx, inputs, targets); err != nil {
				return err
			}
			after := g.Total()
			loads[g.Rank()] = plan.Load{Messages: after.Messages - before.Messages, Bytes: after.Bytes - before.Bytes}
		}
		return rank.Close()
	}))
	return loads
}

// TestRingBytes counts the bytes of each rank's messages, by a ring: 2(N−1)/N of the gradients', which leave out the
// parameter that the loss does not depend on, where N divides each bucket, and 2(N−1) times them over all ranks in any
// case; the same with several micro-batches. (The toy's gradients are 24+6+1+2·42+21 = 136 numbers.) A plan of one's
// own sends what the algorithm does.
func TestRingBytes(t *testing.T) {
	const gradients = 136 * 4
	for _, o := range []ddp.Options{{}, {BucketBytes: 160}, {Accumulate: 2}} {
		o.Hook = ddp.ByPlan(plan.Ring)
		for _, world := range []int{2, 3, 4, 8} {
			total := 0
			all := loads(t, world, o)
			for rank, load := range all {
				total += load.Bytes
				if divides := o.BucketBytes == 0 && 136%world == 0; divides &&
					load.Bytes != 2*(world-1)*gradients/world {
					t.Errorf("rank %d of %d sends %d bytes a step, want %d", rank, world, load.Bytes,
						2*(world-1)*gradients/world)
				}
			}
			if want := 2 * (world - 1) * gradients; total != want {
				t.Errorf("%d ranks send %d bytes a step, want %d: %v", world, total, want, all)
			}
		}
	}
	ring := must.Get(plan.New(plan.AllReduce, plan.Ring, 3))(t)
	own, named := loads(t, 3, ddp.Options{Hook: ddp.ByPlan(ring)}),
		loads(t, 3, ddp.Options{Hook: ddp.ByPlan(plan.Ring)})
	if !slices.Equal(own, named) || own[0].Messages == 0 {
		t.Errorf("%v by a plan of one's own, %v by the algorithm", own, named)
	}
}
