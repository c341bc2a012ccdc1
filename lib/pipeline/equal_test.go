package pipeline_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// result is what training came to: the losses, and the parameters by name.
type result struct {
	losses []float64
	params map[string][]float32
}

// training trains an engine's recipe in a pipeline.
type training struct {
	engine  *pipeline.Engine
	options pipeline.Options
	steps   int
	rows    int
}

func (tr training) run(t *testing.T, backend *xla.Backend) result {
	t.Helper()
	e, err := tr.engine.Pipeline(tr.options)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]result, e.Ranks())
	if err := group.Run(t.Context(), e.Ranks(), func(ctx context.Context, g group.Group) error {
		r, err := e.Join(ctx, g, g.Rank()%backend.Info().Devices)
		if err != nil {
			return err
		}
		defer r.Close()
		own := &all[g.Rank()]
		own.params = map[string][]float32{}
		for step := range tr.steps {
			inputs, targets := toy.Batch(step, tr.rows)
			m, err := r.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := r.Loss(ctx, m)
			if err != nil {
				return err
			}
			own.losses = append(own.losses, loss)
		}
		values, err := r.Params()
		if err != nil {
			return err
		}
		for name, v := range values {
			own.params[name] = tensors.MustCopyFlatData[float32](v)
		}
		return r.Close()
	}, group.Timeout(20*time.Second)); err != nil {
		t.Fatal(err)
	}
	for rank, one := range all { // copies are equal
		for name, values := range one.params {
			if have := all[0].params[name]; have == nil {
				all[0].params[name] = values
			} else if d := apart(have, values); d != 0 {
				t.Errorf("rank %d has another %s than those before it: %g units in the last place apart", rank, name, d)
			}
		}
	}
	return all[0]
}

// alone trains on one device.
func alone(t *testing.T, backend *xla.Backend, recipe train.Recipe, steps, rows int) (r result) {
	t.Helper()
	mesh, err := backend.Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	run, err := train.New(mesh, recipe)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for step := range steps {
		inputs, targets := toy.Batch(step, rows)
		m, err := run.Step(inputs, targets)
		if err != nil {
			t.Fatal(err)
		}
		r.losses = append(r.losses, m.Loss)
	}
	r.params = map[string][]float32{}
	values, err := run.Params(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range recipe.Model.Params() {
		r.params[s.Name] = tensors.MustCopyFlatData[float32](values[i])
	}
	return r
}

// apart is the largest difference, in units in the last place of the largest element.
func apart(a, b []float32) float64 {
	largest, difference := 0.0, 0.0
	for i := range a {
		largest = max(largest, math.Abs(float64(b[i])))
		difference = max(difference, math.Abs(float64(a[i])-float64(b[i])))
	}
	if difference == 0 {
		return 0
	}
	return difference / (math.Exp2(math.Floor(math.Log2(largest))) * 0x1p-23)
}

// worst is the largest difference of parameters.
func (r result) worst(other result) (units float64, name string) {
	for n, values := range other.params {
		if d := apart(r.params[n], values); d >= units {
			units, name = d, n
		}
	}
	return units, name
}

func recipe(model chain.Model) train.Recipe {
	return train.Recipe{Model: model, Rule: optim.AdamW(0.01)}
}

// TestSchedules trains with every synchronous schedule: the same bits with all, and one device's within a bound.
func TestSchedules(t *testing.T) {
	backend := devicetest.Open(t, 4)
	r := recipe(toy.Layers(8, true))
	const steps, rows, m = 3, 16, 8
	want := alone(t, backend, r, steps, rows)
	e, err := pipeline.NewEngine(backend, r)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var first *result
	for _, kind := range schedule.Kinds() {
		if !kind.Synchronous() {
			continue
		}
		s, err := schedule.New(kind, 4, m, 0)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		got := training{engine: e, options: pipeline.Options{Schedule: s}, steps: steps, rows: rows}.run(t, backend)
		d, name := got.worst(want)
		fmt.Println(kind, time.Since(begin), "apart from one device", d, name, got.losses, want.losses)
		if first == nil {
			first = &got
			continue
		}
		d, name = got.worst(*first)
		fmt.Println("   from the first:", d, name)
	}
}
