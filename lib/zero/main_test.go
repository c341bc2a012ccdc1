package zero_test

import (
	"context"
	"errors"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// form is a way to train.
type form struct {
	devices int
	spmd    bool
	zero.Options
}

func (f form) start(t testing.TB, backend *xla.Backend, r train.Recipe) train.Trainer {
	t.Helper()
	begin := zero.New
	if f.spmd {
		begin = zero.NewSPMD
	}
	run := must.Get(begin(context.Background(), backend, r, f.devices, f.Options))(t)
	return run
}

// learn makes steps, and returns the parameters.
func learn(ctx context.Context, run train.Trainer, steps int, batches traintest.Batches) (traintest.Named, error) {
	for range steps {
		inputs, targets := batches(run.Steps())
		if _, err := run.Step(ctx, inputs, targets); err != nil {
			return nil, err
		}
	}
	return run.Params(ctx)
}

// learned is what a form learns.
func learned(t testing.TB, backend *xla.Backend, r train.Recipe, f form, steps int,
	batches traintest.Batches) traintest.Named {
	t.Helper()
	run := f.start(t, backend, r)
	all, err := learn(context.Background(), run, steps, batches)
	must.Do(t, errors.Join(err, run.Close()))
	return all
}

// rules are all kinds of optimizers, one for each part of the toy.
func rules() optim.Optimizer {
	eight := optim.Adam8bit(1e-2)
	eight.Block, eight.Least = 4, 1
	return optim.Grouped(optim.AdamW(1e-2), optim.Group{Has: optim.Named("in.w"), Optimizer: optim.Adafactor(1e-2)},
		optim.Group{Has: optim.Named("in.b", "scale"), Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}},
		optim.Group{Has: optim.Named("h0.w"), Optimizer: eight},
		optim.Group{Has: optim.Named("out.w"), Optimizer: optim.Adam(1e-2)})
}
