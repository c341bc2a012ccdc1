package paramserver_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// result is what a rank ends with.
type result struct {
	losses    []float64 // of the whole batches
	staleness float64   // the sum
	params    traintest.Named
}

// together trains a world of ranks for some steps, and returns what each ends with.
func together(t *testing.T, e *paramserver.Programs, world, steps int, batches traintest.Batches) []result {
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
		if name := traintest.Differ(results[0].params, results[r].params); name != "" {
			t.Errorf("ranks 0 and %d hold different values of %s", r, name)
		}
	}
	return results
}

// steady makes steps on one rank, and closes it.
func steady(ctx context.Context, g group.Group, rank *paramserver.Worker, steps int,
	batches traintest.Batches) (own result, err error) {
	for range steps {
		inputs, targets := batches(rank.Steps())
		m, err := rank.Step(ctx, inputs, targets)
		if err != nil {
			return own, err
		}
		own.staleness += m.Staleness
		loss, err := paramserver.Mean(ctx, g, m.Loss)
		if err != nil {
			return own, err
		}
		own.losses = append(own.losses, loss)
	}
	if own.params, err = rank.Params(ctx); err != nil {
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

func newEngine(t *testing.T, backend *xla.Backend, r train.Recipe, o paramserver.Options) *paramserver.Programs {
	t.Helper()
	e := must.Get(paramserver.NewPrograms(backend, r, o))(t)
	t.Cleanup(e.Close)
	return e
}
