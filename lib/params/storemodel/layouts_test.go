package storemodel_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers/fnn"
	"github.com/gomlx/gomlx/ml/model"
	zoo "github.com/gomlx/gomlx/ml/zoo/transformer"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

var (
	_ train.Buffered = (*storemodel.Model)(nil)
	_ train.Noisy    = (*storemodel.Model)(nil)
)

// result is the result of a training.
type result struct {
	metrics   []train.Metrics
	evaluated float64 // the loss of the batch after the last
	params    traintest.Named
}

const steps = 3

// start starts training in a layout.
func start(t *testing.T, backend *xla.Backend, m train.Model, l parallel.Layout) train.Trainer {
	t.Helper()
	recipe := train.Recipe{Model: m, Optimizer: optim.AdamW(1e-2), Clip: 1, Seed: 5}
	run := must.Get(parallel.New(context.Background(), backend, recipe, l, parallel.Options{}))(t)
	t.Cleanup(func() { run.Close() })
	return run
}

// finish trains to the last step.
func finish(t *testing.T, run train.Trainer, batches traintest.Batches) (out result) {
	t.Helper()
	ctx := context.Background()
	for run.Steps() < steps {
		x, y := batches(run.Steps())
		m := must.Get(run.Step(ctx, x, y))(t)
		out.metrics = append(out.metrics, m)
	}
	out.evaluated = must.Get(run.Evaluate(ctx, first(batches(steps)), second(batches(steps))))(t)
	out.params = must.Get(run.Params(ctx))(t)
	return out
}

// compare fails the test if two trainings differ by more than another order of sums explains: a loss and a norm by a
// relative 1e-5, and a parameter by 16 units in the last place of the largest one.
func compare(t *testing.T, want, got result) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a/b-1) < 1e-5 }
	for i, m := range got.metrics {
		w := want.metrics[len(want.metrics)-len(got.metrics)+i]
		if !near(m.Loss, w.Loss) || !near(m.GradNorm, w.GradNorm) {
			t.Errorf("step %d: loss %g and norm %g, want %g and %g", i, m.Loss, m.GradNorm, w.Loss, w.GradNorm)
		}
	}
	if !near(got.evaluated, want.evaluated) {
		t.Errorf("evaluated: loss %g, want %g", got.evaluated, want.evaluated)
	}
	if off := traintest.Apart(t, want.params, got.params); !(off <= 16) {
		t.Errorf("parameters are %g units apart", off)
	}
}

// TestLayouts trains a network with batch normalization, dropout and a regularizer on one device with as many
// micro-batches as other layouts have replicas: so each normalizes the same examples, and has the same random numbers.
func TestLayouts(t *testing.T) {
	backend := devicetest.Open(t, 4)
	parted := must.Get(storemodel.NewChain(backend, newStore(), cnn(0.3), crossEntropy, pictures, labels))(t)
	for _, c := range []struct {
		name    string
		model   *storemodel.Model
		layouts []parallel.Layout
	}{
		{"whole", newModel(t, devicetest.One(), newStore(), whole(cnn(0.3)), pictures, labels), []parallel.Layout{
			{Data: 2}, {Replicas: 2, ZeRO: 3},
		}},
		{"layers", parted, []parallel.Layout{
			{Data: 2}, {Data: 2, ZeRO: 1}, {Data: 2, ZeRO: 2}, {Data: 2, ZeRO: 3, Prefetch: 1},
			{Replicas: 2}, {Replicas: 2, ZeRO: 1}, {Replicas: 2, ZeRO: 2}, {Replicas: 2, ZeRO: 3},
			{Pipe: 2}, {Pipe: 3, Microbatches: 2, Schedule: "zb-h1"},
			{Pipe: 2, Replicas: 2, Microbatches: 1, Recompute: true},
		}},
	} {
		want := finish(t, start(t, backend, c.model, parallel.Layout{Microbatches: 2}), images)
		for _, l := range c.layouts {
			t.Run(fmt.Sprintf("%s %+v", c.name, l), func(t *testing.T) {
				compare(t, want, finish(t, start(t, backend, c.model, l), images))
			})
		}
	}
}

// TestCheckpoint continues, in a pipeline, from a checkpoint of devices with a sharded state, including buffers.
func TestCheckpoint(t *testing.T) {
	ctx, backend, dir := context.Background(), devicetest.Open(t, 4), t.TempDir()
	m := must.Get(storemodel.NewChain(backend, newStore(), cnn(0.3), crossEntropy, pictures, labels))(t)
	run := start(t, backend, m, parallel.Layout{Data: 2, ZeRO: 3})
	must.Get(run.Step(ctx, first(images(0)), second(images(0))))(t)
	must.Do(t, run.Save(ctx, dir, nil, 1))
	again := start(t, backend, m, parallel.Layout{Pipe: 2})
	must.Do(t, again.Load(ctx, traintest.Last(t, dir)))
	compare(t, finish(t, run, images), finish(t, again, images))
}

// TestBuffersOfAllRanks: ranks, and the devices of one program, have the same buffers bit for bit, although each has
// normalized other examples.
func TestBuffersOfAllRanks(t *testing.T) {
	backend := devicetest.Open(t, 4)
	m := newModel(t, backend, newStore(), whole(cnn(0.3)), pictures, labels)
	recipe := train.Recipe{Model: m, Optimizer: optim.AdamW(1e-2)}
	same := func(t *testing.T, a, b traintest.Named) {
		t.Helper()
		for _, name := range m.BufferNames() {
			if !a.Get(name).Equal(b.Get(name)) {
				t.Errorf("%s is %s on one device, %s on another", name, a[name], b[name])
			}
		}
	}
	mesh := must.Get(backend.Mesh(xla.Axis(train.Axis, 2)))(t)
	one := must.Get(ddp.NewSPMD(mesh, recipe))(t)
	defer one.Close()
	must.Get(one.Step(images(0)))(t)
	var devices [2]traintest.Named
	for i := range devices {
		values := must.Get(one.Params(i))(t)
		devices[i] = must.Get(params.Zip(m.Params(), values))(t)
	}
	same(t, devices[0], devices[1])

	p := must.Get(parallel.NewPlan(recipe, parallel.Layout{Replicas: 2}))(t)
	var mu sync.Mutex
	var ranks []traintest.Named
	must.Do(t, group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		run, err := p.Join(ctx, g, backend, g.Rank(), parallel.Options{})
		if err != nil {
			return err
		}
		defer run.Close()
		if _, err := run.Step(ctx, first(images(0)), second(images(0))); err != nil {
			return err
		}
		values, err := run.Params(ctx)
		mu.Lock()
		defer mu.Unlock()
		ranks = append(ranks, values)
		return err
	}))
	same(t, ranks[0], ranks[1])
}

// TestAuto: if the compiler splits the step, dropout and normalization are those of one device.
func TestAuto(t *testing.T) {
	backend := devicetest.Open(t, 4)
	m := newModel(t, backend, newStore(), whole(cnn(0.3)), pictures, labels)
	var losses [3][]float64
	for n := 1; n <= 2; n++ {
		mesh := must.Get(backend.Mesh(xla.Axis(train.Axis, n)))(t)
		run := must.Get(ddp.NewAuto(mesh, train.Recipe{Model: m, Optimizer: optim.AdamW(1e-2)}))(t)
		defer run.Close()
		for i := range steps {
			m := must.Get(run.Step(images(i)))(t)
			losses[n] = append(losses[n], m.Loss)
		}
	}
	for i, loss := range losses[2] {
		if !(math.Abs(loss/losses[1][i]-1) < 1e-5) {
			t.Errorf("losses %v on two devices, %v on one", losses[2], losses[1])
		}
	}
}

// TestModelsOfGoMLX trains the transformer of GoMLX's zoo, with dropout, and its feedforward network, with batch
// normalization, dropout and a regularizer by hyperparameters in the store.
func TestModelsOfGoMLX(t *testing.T) {
	backend := devicetest.Open(t, 4)
	text := shapes.Make(dtypes.Int32, 8, 6)
	transformer := func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		m := zoo.New(scope).WithVocabSize(5).WithEmbedDim(8).WithNumLayers(1).WithNumHeads(2).WithHeadDim(4).
			WithFFNDim(16).WithMaxPosEmbed(6).WithDropout(0.2).WithBias(false)
		return crossEntropy(m.Logits(inputs, zoo.CallOptions{}), graph.InsertAxes(targets, -1))
	}
	network := newStore()
	network.SetParams(map[string]any{
		fnn.ParamNumHiddenLayers: 2, fnn.ParamNumHiddenNodes: 8, "activation": "swish",
		"normalization": "batch", "dropout_rate": 0.2, "l2_regularization": 1e-3,
	})
	for _, c := range []struct {
		name  string
		model *storemodel.Model
		batch traintest.Batches
	}{
		{"zoo", newModel(t, backend, newStore(), transformer, text, text), func(i int) (x, y *tensors.Tensor) {
			return random(seeded(i), text), random(seeded(100+i), text)
		}},
		{"fnn", newModel(t, backend, network, func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
			x := graph.Reshape(inputs, inputs.Shape().Dim(0), -1)
			return crossEntropy(fnn.New(scope, x, classes).Done(), targets)
		}, pictures, labels), images},
	} {
		want := finish(t, start(t, backend, c.model, parallel.Layout{Microbatches: 2}), c.batch)
		for _, l := range []parallel.Layout{{Data: 2}, {Replicas: 2, ZeRO: 3}} {
			t.Run(fmt.Sprintf("%s %+v", c.name, l), func(t *testing.T) {
				compare(t, want, finish(t, start(t, backend, c.model, l), c.batch))
			})
		}
		if has := strings.Contains(fmt.Sprint(c.model.BufferNames()), "batch_normalization"); has != (c.name == "fnn") {
			t.Errorf("%s: buffers %q", c.name, c.model.BufferNames())
		}
	}
}
