package paramserver_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
)

// sent returns what each rank sends in a step: in a run of two, but not in one of one.
func sent(t *testing.T, e *paramserver.Engine, world, rows int) []plan.Load {
	t.Helper()
	loads := make([]plan.Load, world)
	for steps := 1; steps <= 2; steps++ {
		if err := group.Run(context.Background(), world, func(ctx context.Context, inner group.Group) error {
			g := group.Count(inner)
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			inputs, targets := toy.Batch(0, rows)
			for range steps {
				if _, err := rank.Step(ctx, inputs, targets); err != nil {
					return err
				}
			}
			traffic, err := rank.Traffic()
			if err != nil {
				return err
			}
			if err := rank.Close(); err != nil {
				return err
			}
			if n := traffic[paramserver.BetweenRanks]; n == 0 || n > int64(g.Total().Bytes) {
				t.Errorf("rank %d: %d bytes of traffic in a step, and %d were sent in all", g.Rank(), n, g.Total().Bytes)
			}
			own, total := &loads[g.Rank()], g.Total()
			own.Messages, own.Bytes = total.Messages-own.Messages, total.Bytes-own.Bytes
			return group.Barrier(ctx, inner)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return loads
}

// TestServerBytes counts what servers and workers send: each bucket's gradients there and its parameters back, but for the
// server's own, and 24 bytes before each.
func TestServerBytes(t *testing.T) {
	const worlds = 5
	backend := devicetest.Open(t, worlds)
	for _, servers := range []int{1, 2, worlds} {
		for _, async := range []bool{false, true} {
			if async && servers != 2 {
				continue // how many there are, servers that wait have shown
			}
			o := paramserver.Options{Async: async, BucketBytes: 160, Servers: servers}
			e := newEngine(t, backend, train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}, o)
			loads := sent(t, e, worlds, 2*worlds)
			for rank, load := range loads {
				want := 0
				for i, b := range e.Buckets() {
					if i%servers == rank {
						want += (worlds - 1) * (int(b.Bytes()) + 24) // the parameters, as many as gradients
					} else {
						want += int(b.Bytes()) + 24
					}
				}
				if load.Bytes != want {
					t.Errorf("async %v, %d servers: rank %d sends %d bytes, want %d", async, servers, rank, load.Bytes, want)
				}
			}
		}
	}
}
