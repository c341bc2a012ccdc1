package ddp_test

import (
	"context"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// sent returns what each rank sends in a step: in a run of two, but not in one of one.
func sent(t *testing.T, e *ddp.Engine, world, rows int) []plan.Load {
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
			if err := rank.Close(); err != nil {
				return err
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

// TestRingBytes counts the bytes of each rank's messages: 2(N−1)/N of the gradients', which leave out the parameter that is not used, where
// N divides each bucket, and 2(N−1) times them over all ranks in any case; the same with several micro-batches. (The toy's
// gradients are 24+6+1+2·42+21 = 136 numbers.)
func TestRingBytes(t *testing.T) {
	const gradients = 136 * 4
	backend := devicetest.Open(t, 8)
	for _, o := range []ddp.Options{{}, {BucketBytes: 160}, {Accumulate: 2}} {
		o.Hook = ddp.ByPlan(plan.Ring)
		e := newEngine(t, backend, train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}, o)
		for world := 1; world <= 8; world++ {
			total := 0
			loads := sent(t, e, world, 2*world)
			for rank, load := range loads {
				total += load.Bytes
				if divides := o.BucketBytes == 0 && 136%world == 0; divides && load.Bytes != 2*(world-1)*gradients/world {
					t.Errorf("rank %d of %d sends %d bytes a step, want %d", rank, world, load.Bytes, 2*(world-1)*gradients/world)
				}
			}
			if want := 2 * (world - 1) * gradients; total != want {
				t.Errorf("%d ranks send %d bytes a step, want %d: %v", world, total, want, loads)
			}
		}
	}
}

// TestOwnPlan trains by a plan of one's own as by the algorithm that it was made by.
func TestOwnPlan(t *testing.T) {
	const world = 3
	backend := devicetest.Open(t, 8)
	ring, err := plan.New(plan.AllReduce, plan.Ring, world)
	if err != nil {
		t.Fatal(err)
	}
	of := func(way plan.Way) []plan.Load {
		r := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}
		return sent(t, newEngine(t, backend, r, ddp.Options{Hook: ddp.ByPlan(way)}), world, 2*world)
	}
	if own, named := of(ring), of(plan.Ring); !slices.Equal(own, named) || own[0].Messages == 0 {
		t.Errorf("%v by a plan of one's own, %v by the algorithm", own, named)
	}
}

// TestServerBytes counts what servers and workers send: each bucket's gradients there and its parameters back, but for the
// server's own, and 24 bytes before each.
func TestServerBytes(t *testing.T) {
	const worlds = 5
	backend := devicetest.Open(t, worlds)
	for _, servers := range []int{1, 2, worlds} {
		for _, way := range []ddp.Sync{ddp.Server, ddp.Async} {
			if way == ddp.Async && servers != 2 {
				continue // how many there are, servers that wait have shown
			}
			o := ddp.Options{Sync: way, BucketBytes: 160, Servers: servers}
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
					t.Errorf("%s, %d servers: rank %d sends %d bytes, want %d", way, servers, rank, load.Bytes, want)
				}
			}
		}
	}
}

// TestAccumulationBytes counts what is given to collectives: with k micro-batches as much as with one, and k times that if
// each of them is synchronised.
func TestAccumulationBytes(t *testing.T) {
	backend := devicetest.Open(t, 2)
	for _, c := range []struct {
		o    ddp.Options
		want int64
	}{{ddp.Options{}, 544}, {ddp.Options{Accumulate: 3}, 544}, {ddp.Options{Accumulate: 3, EachMicroBatch: true}, 3 * 544},
		{ddp.Options{Sync: ddp.Naive, Accumulate: 3, EachMicroBatch: true}, 3 * 544}, {ddp.Options{Every: 2}, (544 + 20) / 2}} { // with what is not used
		c.o.Trace = trace.New()
		const steps = 4
		together(t, newEngine(t, backend, train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}, c.o), 2, steps, toySource(6))
		var last [2]int64
		for _, n := range c.o.Trace.Counters() {
			last[n.Rank] = max(last[n.Rank], n.Value)
		}
		if last != [2]int64{steps * c.want, steps * c.want} {
			t.Errorf("%+v: %v bytes in %d steps, want %d a step", c.o, last, steps, c.want)
		}
	}
}
