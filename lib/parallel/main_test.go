package parallel_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// deviceCount is the number of devices of all tests, and the maximum of a layout.
const deviceCount = 8

var devices = sync.OnceValue(func() *xla.Backend {
	backend, err := xla.Open(xla.Devices(deviceCount), xla.Plugin("cpu"))
	if err != nil {
		panic(err)
	}
	return backend
})

// small is the smallest model that eight devices can share in every way: most of the tests' time is the compiler's.
func small(layers int) gpt.Config {
	return gpt.Config{Layers: layers, Width: 8, Heads: 8, Seq: 8, Vocab: 11, NoBias: true, Norm: gpt.RMSNorm,
		Activation: gpt.ReLU}
}

// text is a batch of a step for a small model, the same whoever asks.
func text(step, rows int) (inputs, targets *tensors.Tensor) {
	c := small(1)
	random := rand.New(rand.NewPCG(1, uint64(step)))
	x, y := make([]int32, rows*c.Seq), make([]int32, rows*c.Seq)
	for i := range x {
		x[i], y[i] = int32(random.IntN(c.Vocab)), int32(random.IntN(c.Vocab))
	}
	return tensors.FromFlatDataAndDimensions(x, rows, c.Seq), tensors.FromFlatDataAndDimensions(y, rows, c.Seq)
}

func texts(rows int) traintest.Batches {
	return func(step int) (*tensors.Tensor, *tensors.Tensor) { return text(step, rows) }
}

// sharing is the recipe of a GPT for the devices of a layout; the model of any other recipe is left as it is.
func sharing(r train.Recipe, l parallel.Layout, p sequence.Placement) train.Recipe {
	if c, ok := r.Model.(gpt.Config); ok {
		r.Model = gpt.Parallel{Config: c, Tensor: l.TensorGroup(), Sequence: l.SequenceGroup(p), Experts: l.Experts()}
	}
	return r
}

// start begins a run, which ends with the test.
func start(t testing.TB, r train.Recipe, l parallel.Layout) train.Trainer {
	t.Helper()
	run := must.Get(parallel.New(context.Background(), devices(), sharing(r, l, ""), l, parallel.Options{}))(t)
	t.Cleanup(func() {
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	})
	return run
}

// steps has a run train to a step.
func steps(t testing.TB, run train.Trainer, to int, batches traintest.Batches) (all []train.Metrics) {
	t.Helper()
	for run.Steps() < to {
		m := must.Get(stepOn(run, batches))(t)
		all = append(all, m)
	}
	return all
}

// paramsOf are a run's parameters.
func paramsOf(t testing.TB, run train.Trainer) traintest.Named {
	t.Helper()
	all := must.Get(run.Params(context.Background()))(t)
	return all
}

// stepOn makes a run's next step.
func stepOn(run train.Trainer, batches traintest.Batches) (train.Metrics, error) {
	inputs, targets := batches(run.Steps())
	return run.Step(context.Background(), inputs, targets)
}
