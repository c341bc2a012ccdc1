package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The tests share devices, and an engine for each model: most of their time is the compiler's, and an engine's programs are the
// same for all schedules and cuts as long as a micro-batch has as many rows.
const (
	deviceCount = 4
	microRows   = 2
)

var devices = sync.OnceValue(func() *xla.Backend {
	backend, err := xla.Open(xla.Devices(deviceCount), xla.Plugin("cpu"))
	if err != nil {
		panic(err)
	}
	return backend
})

var engines = map[string]*pipeline.Engine{}

// engineOf returns the engine of a recipe, which is the same for the same name.
func engineOf(t testing.TB, name string, r train.Recipe) *pipeline.Engine {
	t.Helper()
	if engines[name] == nil {
		e, err := pipeline.NewEngine(devices(), r)
		if err != nil {
			t.Fatal(err)
		}
		engines[name] = e
	}
	return engines[name]
}

// tiedRecipe is of twelve blocks, enough for six ranks with two stages each; the first and the last have a parameter in common.
func tiedRecipe() train.Recipe {
	return train.Recipe{Model: toy.Layers(12, true), Rule: optim.SGDRule{LR: 0.5, Momentum: 0.9}}
}

func tiedEngine(t testing.TB) *pipeline.Engine {
	t.Helper()
	return engineOf(t, "tied", tiedRecipe())
}

// freeChain is of four blocks with no parameter in common.
func freeChain() chain.Model { return toy.Layers(4, false) }

// freeRecipe trains it by a rule that keeps nothing.
func freeRecipe() train.Recipe { return train.Recipe{Model: freeChain(), Rule: optim.SGD(freeRate)} }

const freeRate = 0.5

func freeEngine(t testing.TB) *pipeline.Engine {
	t.Helper()
	return engineOf(t, "free", freeRecipe())
}

// newSchedule builds a named schedule.
func newSchedule(t testing.TB, kind schedule.Kind, ranks, microbatches, chunks int) schedule.Schedule {
	t.Helper()
	s, err := schedule.New(kind, ranks, microbatches, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type batchOf = traintest.Batches

func toyBatches(rows int) batchOf {
	return func(step int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(step, rows) }
}

// result is what training came to.
type result struct {
	losses  []float64
	params  traintest.Named
	metrics []train.Metrics // by step; of the last rank
}

// training trains an engine's recipe in a pipeline.
type training struct {
	engine  *pipeline.Engine
	options pipeline.Options
	steps   int
	batches batchOf
}

// joined has each rank of a new group do something.
func (tr training) joined(ctx context.Context, do func(ctx context.Context, g group.Group, r *pipeline.Rank) error) error {
	p, err := tr.engine.Pipeline(tr.options)
	if err != nil {
		return err
	}
	return group.Run(ctx, p.Ranks(), func(ctx context.Context, g group.Group) error {
		r, err := p.Join(ctx, g, g.Rank()%deviceCount)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, g, r), r.Close())
	}, group.Timeout(time.Minute))
}

// run returns the losses, and all parameters by name. Copies of one on several ranks must be equal, and the activations that
// a rank keeps those that its schedule foretells.
func (tr training) run(t *testing.T) result {
	t.Helper()
	timeline, err := tr.options.Schedule.Simulate(schedule.Equal())
	if err != nil {
		t.Fatal(err)
	}
	peaks := timeline.PeakActivations
	var mu sync.Mutex // of what ranks have in common
	all := result{params: traintest.Named{}}
	if err := tr.joined(t.Context(), func(ctx context.Context, g group.Group, r *pipeline.Rank) error {
		own, err := steady(ctx, r, tr.steps, tr.batches)
		if err != nil {
			return err
		}
		if got, want := r.PeakActivations(), peaks[g.Rank()%len(peaks)]; got != want {
			t.Errorf("%s: rank %d has kept %d micro-batches at once, want %d", tr.options.Schedule.Name, g.Rank(), got, want)
		}
		mu.Lock()
		defer mu.Unlock()
		all.losses = own.losses
		if g.Rank() == g.Size()-1 {
			all.metrics = own.metrics
		}
		for name, v := range own.params {
			if have := all.params[name]; have != nil && !have.Equal(v) {
				t.Errorf("%s: rank %d has another %s than a rank before it", tr.options.Schedule.Name, g.Rank(), name)
			}
			all.params[name] = v
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", tr.options.Schedule.Name, err)
	}
	return all
}

// steady has a rank train to a step.
func steady(ctx context.Context, r *pipeline.Rank, to int, batches batchOf) (own result, err error) {
	for r.Steps() < to {
		inputs, targets := batches(r.Steps())
		m, err := r.Step(ctx, inputs, targets)
		if err != nil {
			return own, err
		}
		own.metrics = append(own.metrics, m)
		loss, err := r.Loss(ctx, m)
		if err != nil {
			return own, err
		}
		own.losses = append(own.losses, loss)
	}
	own.params, err = r.Params()
	return own, err
}

// alone trains on one device.
func alone(t testing.TB, recipe train.Recipe, steps int, batches batchOf) (r result) {
	t.Helper()
	r.params, r.metrics = traintest.Alone(t, devices(), recipe, steps, batches)
	for _, m := range r.metrics {
		r.losses = append(r.losses, m.Loss)
	}
	return r
}

// differ returns the name of a parameter whose bits differ, or "".
func (r result) differ(other result) string {
	if len(r.params) != len(other.params) {
		return "the number of parameters"
	}
	return traintest.Differ(r.params, other.params)
}

// apart is by how much two results differ at most, in units in the last place of the largest parameter.
func (r result) apart(t testing.TB, other result) float64 {
	t.Helper()
	return traintest.Apart(t, r.params, other.params)
}

// bound is by how many units in the last place of the largest parameter a run may differ from one device's: sums are made in
// another order. Of the runs here the furthest off differed by 1.
const bound = 4

// gradients is a rule that puts a parameter's gradient in its place, so that its bits can be seen.
type gradients struct{}

func (gradients) Validate() error                                    { return nil }
func (gradients) States(_ params.Spec, _ optim.Part) []optim.State   { return nil }
func (gradients) Update(u optim.Update) (*graph.Node, []*graph.Node) { return u.Grad, nil }
