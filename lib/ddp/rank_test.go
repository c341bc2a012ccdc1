package ddp_test

import (
	"context"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// result is what a rank ends with.
type result struct {
	losses []float64 // of the whole batches
	params params.Named[*tensors.Tensor]
}

// together trains on a world of ranks for some steps of a batch, and returns what each ends with.
func together(t *testing.T, e *ddp.Engine, world, batch, steps int) []result {
	t.Helper()
	results := make([]result, world)
	batches, err := gpt.Reference().Batches(tiny, batch)
	if err != nil {
		t.Fatal(err)
	}
	err = group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		defer rank.Close()
		own := &results[g.Rank()]
		for range steps {
			inputs, targets, err := batches.Step(rank.Steps())
			if err != nil {
				return err
			}
			m, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := ddp.Mean(ctx, g, m.Loss)
			if err != nil {
				return err
			}
			own.losses = append(own.losses, loss)
		}
		own.params, err = rank.Params()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func engine(t *testing.T, backend *xla.Backend, r train.Recipe, o ddp.Options) *ddp.Engine {
	t.Helper()
	e, err := ddp.NewEngine(backend, r, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestFirst(t *testing.T) {
	backend := devicetest.Open(t, 4)
	c := tiny
	c.Layers = 2
	r := train.Recipe{Model: c, Rule: optim.AdamW(1e-3)}
	losses, run := trainedBy(t, backend, r, 1, 8, 5)
	want := parameters(t, run, 0)
	t.Log(losses)
	for _, o := range []ddp.Options{{Sync: ddp.Naive}, {Sync: ddp.Overlap}, {}, {BucketBytes: 50000, Recompute: true}, {Accumulate: 2}, {Accumulate: 2, EachMicroBatch: true}, {Sync: ddp.Server, BucketBytes: 30000}, {Sync: ddp.Server, Servers: 1}, {Sync: ddp.Async, BucketBytes: 30000}} {
		for _, world := range []int{1, 4} {
			got := together(t, engine(t, backend, r, o), world, 8, 5)
			t.Log(o.Sync, world, got[0].losses)
			var worst float64
			for i, s := range c.Params() {
				worst = max(worst, largestDifference(got[0].params[s.Name], want[i]))
				if world > 1 && !got[0].params[s.Name].Equal(got[1].params[s.Name]) {
					t.Errorf("%v: ranks differ in %s", o, s)
				}
			}
			t.Log(worst)
		}
	}
}
