package pipeline_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/toy"
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

// freeRecipe is of four blocks with no parameter in common, by a rule that keeps nothing.
func freeRecipe() train.Recipe {
	return train.Recipe{Model: toy.Layers(4, false), Rule: optim.SGD(freeRate)}
}

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

// batchOf gives the batch of a step.
type batchOf func(step int) (inputs, targets *tensors.Tensor)

func toyBatches(rows int) batchOf {
	return func(step int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(step, rows) }
}

// result is what training came to.
type result struct {
	losses  []float64
	params  params.Named[*tensors.Tensor]
	metrics train.Metrics // of the last step
}

// training trains an engine's recipe in a pipeline.
type training struct {
	engine  *pipeline.Engine
	options pipeline.Options
	steps   int
	batches batchOf
	visit   func(r *pipeline.Rank) error // where it is not nil, each rank at the end
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

// run returns the losses, and all parameters by name. Copies of one on several ranks must be equal.
func (tr training) run(t *testing.T) result {
	t.Helper()
	var mu sync.Mutex // of what ranks have in common
	all := result{params: params.Named[*tensors.Tensor]{}}
	if err := tr.joined(t.Context(), func(ctx context.Context, g group.Group, r *pipeline.Rank) error {
		own, err := steady(ctx, r, tr.steps, tr.batches)
		if err != nil {
			return err
		}
		if tr.visit != nil {
			if err := tr.visit(r); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all.losses, all.metrics = own.losses, own.metrics
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
		if own.metrics, err = r.Step(ctx, inputs, targets); err != nil {
			return own, err
		}
		loss, err := r.Loss(ctx, own.metrics)
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
	mesh, err := devices().Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	run, err := train.New(mesh, recipe)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for step := range steps {
		inputs, targets := batches(step)
		if r.metrics, err = run.Step(inputs, targets); err != nil {
			t.Fatal(err)
		}
		r.losses = append(r.losses, r.metrics.Loss)
	}
	values, err := run.Params(0)
	if err != nil {
		t.Fatal(err)
	}
	if r.params, err = params.Zip(recipe.Model.Params(), values); err != nil {
		t.Fatal(err)
	}
	return r
}

// differ returns the name of a parameter whose bits differ, or "".
func (r result) differ(other result) string {
	for name, v := range r.params {
		if other.params[name] == nil || !v.Equal(other.params[name]) {
			return name
		}
	}
	if len(r.params) != len(other.params) {
		return "the number of parameters"
	}
	return ""
}

// apart is by how much two results differ at most, in units in the last place of the largest parameter, in float32.
func (r result) apart(t testing.TB, other result) float64 {
	t.Helper()
	var worst, largest float64
	for name := range r.params {
		x, y := inFull(t, r.params[name]), inFull(t, other.params.Get(name))
		for i := range x {
			if x[i] != x[i] || y[i] != y[i] {
				t.Fatalf("%s has NaNs", name)
			}
			worst, largest = max(worst, math.Abs(float64(x[i])-float64(y[i]))), max(largest, math.Abs(float64(x[i])))
		}
	}
	return worst / (float64(math.Nextafter32(float32(largest), 2*float32(largest))) - largest)
}

// inFull copies a tensor's values as float32.
func inFull(t testing.TB, v *tensors.Tensor) []float32 {
	t.Helper()
	v, err := train.Convert(v, dtypes.Float32)
	if err != nil {
		t.Fatal(err)
	}
	return tensors.MustCopyFlatData[float32](v)
}

// bound is by how many units in the last place of the largest parameter a run may differ from one device's: sums are made in
// another order. Of the runs here the furthest off differed by 1.
const bound = 4

// gradients is a rule that puts a parameter's gradient in its place, so that its bits can be seen.
type gradients struct{}

func (gradients) Validate() error                                    { return nil }
func (gradients) States(_ params.Spec, _ optim.Part) []optim.State   { return nil }
func (gradients) Update(u optim.Update) (*graph.Node, []*graph.Node) { return u.Grad, nil }
