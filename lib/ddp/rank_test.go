package ddp_test

import (
	"context"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
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
	losses    []float64 // of the whole batches
	metrics   []ddp.Metrics
	staleness float64 // the sum
	params    params.Named[*tensors.Tensor]
}

// source gives the batch of a step.
type source func(step int) (inputs, targets *tensors.Tensor, err error)

func toySource(rows int) source {
	return func(step int) (*tensors.Tensor, *tensors.Tensor, error) {
		inputs, targets := toy.Batch(step, rows)
		return inputs, targets, nil
	}
}

func textSource(t *testing.T, c gpt.Config, rows int) source {
	t.Helper()
	batches, err := gpt.Reference().Batches(c, rows)
	if err != nil {
		t.Fatal(err)
	}
	return batches.Step
}

// together trains a world of ranks for some steps, and returns what each ends with.
func together(t *testing.T, e *ddp.Engine, world, steps int, batches source) []result {
	t.Helper()
	results := make([]result, world)
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) (err error) {
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		results[g.Rank()], err = steady(ctx, g, rank, steps, batches)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for r := range results {
		if name := differ(results[0].params, results[r].params); name != "" {
			t.Errorf("ranks 0 and %d hold different values of %s", r, name)
		}
	}
	return results
}

// steady makes steps on one rank, and closes it.
func steady(ctx context.Context, g group.Group, rank *ddp.Rank, steps int, batches source) (own result, err error) {
	for range steps {
		inputs, targets, err := batches(rank.Steps())
		if err != nil {
			return own, err
		}
		m, err := rank.Step(ctx, inputs, targets)
		if err != nil {
			return own, err
		}
		own.staleness += m.Staleness
		own.metrics = append(own.metrics, m)
		loss, err := ddp.Mean(ctx, g, m.Loss)
		if err != nil {
			return own, err
		}
		own.losses = append(own.losses, loss)
	}
	if own.params, err = rank.Params(); err != nil {
		return own, err
	}
	return own, rank.Close()
}

// learned says whether losses have fallen.
func learned(losses []float64) bool {
	n := len(losses) / 3
	var first, last float64
	for i := range n {
		first, last = first+losses[i], last+losses[len(losses)-1-i]
	}
	return last < first
}

// differ returns the name of a parameter whose bits differ, or "".
func differ(a, b params.Named[*tensors.Tensor]) string {
	for name := range a {
		if b[name] == nil || !a[name].Equal(b[name]) {
			return name
		}
	}
	return ""
}

func newEngine(t *testing.T, backend *xla.Backend, r train.Recipe, o ddp.Options) *ddp.Engine {
	t.Helper()
	e, err := ddp.NewEngine(backend, r, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// forms are the ways to synchronise at each step. Small buckets cut the toy's gradients so that a block's lie in several.
func forms() map[string]ddp.Options {
	return map[string]ddp.Options{
		"naive":          {Sync: ddp.Naive},
		"overlap":        {Sync: ddp.Overlap},
		"one bucket":     {},
		"buckets":        {BucketBytes: 160},
		"recomputing":    {BucketBytes: 160, Recompute: true},
		"servers":        {Sync: ddp.Server, BucketBytes: 160},
		"one server":     {Sync: ddp.Server, BucketBytes: 160, Servers: 1},
		"served at once": {Sync: ddp.Server},
	}
}

// TestEqualsAccumulation holds every synchronous form, in worlds of 1 to 8 ranks, against one device that computes the same
// micro-batches one after another: the sums are made in the same order, so the bits are the same. Where two blocks share a
// parameter, its gradients are summed over these first, and the forms equal each other only.
func TestEqualsAccumulation(t *testing.T) {
	const steps, rows = 20, 2
	backend := devicetest.Open(t, 8)
	for _, tied := range []bool{false, true} {
		recipe := train.Recipe{Model: toy.Layers(3, tied), Rule: optim.AdamW(1e-2)}
		engines := map[string]*ddp.Engine{}
		for name, o := range forms() {
			if tied && (name == "one server" || name == "served at once" || name == "one bucket") {
				continue // what servers and buckets hold makes no difference to that
			}
			engines[name] = newEngine(t, backend, recipe, o)
		}
		worlds := []int{1, 2, 3, 4, 5, 6, 7, 8}
		if tied {
			worlds = []int{3, 8}
		}
		for _, world := range worlds {
			batches := toySource(rows * world)
			var want result
			if tied {
				want = together(t, engines["naive"], world, steps, batches)[0]
			} else {
				want = together(t, newEngine(t, backend, recipe, ddp.Options{Accumulate: world}), 1, steps, batches)[0]
			}
			if !learned(want.losses) {
				t.Errorf("tied %v, %d ranks: losses %v", tied, world, want.losses)
			}
			for name, e := range engines {
				got := together(t, e, world, steps, batches)[0]
				if diff := differ(want.params, got.params); diff != "" {
					t.Errorf("%s, tied %v, %d ranks: %s is not the same bit for bit", name, tied, world, diff)
				}
			}
		}
	}
}

// TestWhole trains a model that is no chain of blocks as the chain that it was made of.
func TestWhole(t *testing.T) {
	const steps, world = 5, 3
	backend := devicetest.Open(t, 8)
	of := func(m train.Model) traintest.Named {
		e := newEngine(t, backend, train.Recipe{Model: m, Rule: optim.AdamW(1e-2)}, ddp.Options{})
		return together(t, e, world, steps, toySource(2*world))[0].params
	}
	m := toy.Model(false)
	const bound = 4 // one program rounds otherwise than several
	if off := traintest.Apart(t, of(m), of(traintest.Whole{Model: m})); !(off <= bound) {
		t.Errorf("%g units apart", off)
	}
}
