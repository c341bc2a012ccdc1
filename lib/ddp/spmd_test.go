package ddp_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

var tiny = gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 8, Vocab: 256}

// adamW is the recipe of most tests.
func adamW(c gpt.Config) train.Recipe { return train.Recipe{Model: c, Optimizer: optim.AdamW(1e-3)} }

// trained trains on a world of devices and returns the losses and the run.
func trained(t *testing.T, backend *xla.Backend, recipe train.Recipe, world, steps int, batches source) ([]float64,
	*train.Run) {
	t.Helper()
	mesh := must.Get(backend.Mesh(xla.Axis("data", world)))(t)
	run := must.Get(ddp.NewSPMD(mesh, recipe))(t)
	return stepped(t, run, steps, batches), run
}

// TestEqualsOneDevice trains the same batches on 1 to 8 devices, which must hold the same bits. Different numbers of
// devices sum in different orders, so parameters may differ by rounding: AdamW moves an element by about the learning
// rate whatever the size of its gradient, so a gradient that is only rounding error can show as a fraction of that.
// (TestInGraph has a GPT on several devices.)
func TestEqualsOneDevice(t *testing.T) {
	const steps = 20
	const lossBound, paramBound = 2e-6, 1e-6
	backend := devicetest.Open(t, 8)
	recipe := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(1e-3)}
	for batch, worlds := range map[int][]int{24: {2, 3, 4, 6, 8}, 35: {5, 7}} {
		wantLosses, one := trained(t, backend, recipe, 1, steps, toySource(batch))
		want := parameters(t, one, 0)
		for _, world := range worlds {
			losses, run := trained(t, backend, recipe, world, steps, toySource(batch))
			for step := range losses {
				if diff := losses[step]/wantLosses[step] - 1; !(diff < lossBound && diff > -lossBound) {
					t.Errorf("world %d, step %d: loss %v, on one device %v", world, step, losses[step],
						wantLosses[step])
				}
			}
			first := parameters(t, run, 0)
			for device := 1; device < world; device++ {
				for i, got := range parameters(t, run, device) {
					if !got.Equal(first[i]) {
						t.Errorf("world %d: devices 0 and %d hold different values of %v", world, device,
							recipe.Model.Params()[i])
					}
				}
			}
			var worst float64
			for i := range want {
				worst = max(worst, largestDifference(first[i], want[i]))
			}
			t.Logf("world %d: parameters differ from one device's by at most %.2g", world, worst)
			if !(worst <= paramBound) {
				t.Errorf("world %d: parameters differ from one device's by %v, want at most %v", world, worst,
					paramBound)
			}
		}
	}
}

// row is a model whose gradient is the mean of its examples.
type row struct{}

func (row) Validate() error     { return nil }
func (row) Params() params.Tree { return params.Tree{params.New("w", dtypes.Float32, 3)} }
func (row) Init() ([]*tensors.Tensor, error) {
	return []*tensors.Tensor{tensors.FromValue([]float32{1, 2, 3})}, nil
}
func (row) Loss(p params.Nodes, x, _ *graph.Node) *graph.Node {
	products := graph.Mul(x, graph.ExpandLeftToRank(p.Get("w"), 2))
	return graph.ReduceAllMean(graph.ReduceSum(products, -1))
}

// TestOverflowOnOneDevice has one device whose gradients are not finite: all of them leave the step out.
func TestOverflowOnOneDevice(t *testing.T) {
	mesh := must.Get(devicetest.Open(t, 2).Mesh(xla.Axis(train.Axis, 2)))(t)
	policy := must.Get(precision.ParsePolicy("fp32"))(t)
	policy.Scaling = precision.Dynamic()
	run := must.Get(ddp.NewSPMD(mesh, train.Recipe{Model: row{}, Optimizer: optim.SGD(1), Precision: policy}))(t)
	step := func(x [][]float32) train.Metrics {
		m := must.Get(run.Step(tensors.FromValue(x), tensors.FromValue(x)))(t)
		return m
	}
	inf := float32(math.Inf(1))
	if m := step([][]float32{{1, 1, 1}, {1, inf, 1}}); !m.Skipped {
		t.Errorf("%+v: not skipped", m)
	}
	if m := step([][]float32{{1, 0, 1}, {0, 0, 1}}); m.Skipped || m.Scale != 32768 {
		t.Errorf("%+v: skipped, or at another scale than half of the first", m)
	}
	for device := range 2 {
		if got := parameters(t, run, device)[0].Value(); !slices.Equal(got.([]float32), []float32{0.5, 2, 2}) {
			t.Errorf("device %d: parameters %v, want [0.5 2 2]", device, got)
		}
	}
}

func parameters(t *testing.T, run *train.Run, device int) []*tensors.Tensor {
	t.Helper()
	values := must.Get(run.Params(device))(t)
	return values
}

func largestDifference(a, b *tensors.Tensor) float64 {
	x, y := tensors.MustCopyFlatData[float32](a), tensors.MustCopyFlatData[float32](b)
	var worst float64
	for i := range x {
		d := float64(x[i]) - float64(y[i])
		if !(d <= worst && -d <= worst) {
			worst = max(d, -d)
		}
	}
	return worst
}

func TestStepFreesTheOldState(t *testing.T) {
	backend := devicetest.Open(t, 8)
	_, run := trained(t, backend, adamW(tiny), 2, 3, textSource(t, tiny, 4))
	state := (tiny.Params().Bytes()) * 3 // parameters and AdamW's two states
	for device, live := range backend.Live()[:2] {
		// Beside the state there are only the batches and losses, which are small.
		if live.Bytes < state || live.Bytes > state+10_000 {
			t.Errorf("device %d holds %d bytes after 3 steps, the state alone is %d", device, live.Bytes, state)
		}
	}
	if m, err := run.Memory(); err != nil || m.Arguments < state || m.Outputs < state {
		t.Errorf("memory %+v (error %v), the state alone is %d", m, err, state)
	}
}

func TestErrors(t *testing.T) {
	backend := devicetest.Open(t, 8)
	mesh, err := backend.Mesh(xla.Axis("data", 4))
	must.Do(t, err)
	other := must.Get(backend.Mesh(xla.Axis("tensor", 4)))(t)
	if _, err := ddp.NewSPMD(other, adamW(tiny)); err == nil || !strings.Contains(err.Error(), "tensor") {
		t.Errorf("a mesh without the axis: %v", err)
	}
	for _, m := range []train.Model{tiny, gpt.Parallel{Config: tiny}} {
		r := train.Recipe{Model: m, Optimizer: optim.SGD(1)}
		if _, err := ddp.NewSPMD(nil, r); err == nil || !strings.Contains(err.Error(), "the mesh is nil") {
			t.Errorf("no mesh, for a %T: %v", m, err)
		}
	}
	if _, err := ddp.NewSPMD(mesh, adamW(gpt.Config{})); err == nil {
		t.Error("an empty model: no error")
	}
	if _, err := ddp.NewSPMD(mesh, train.Recipe{Model: tiny, Optimizer: optim.AdamW(-1)}); err == nil {
		t.Error("a negative learning rate: no error")
	}
	run := must.Get(ddp.NewSPMD(mesh, adamW(tiny)))(t)
	batches := must.Get(gpt.Reference().Batches(tiny, 6))(t)
	inputs, targets, err := batches.Step(0)
	must.Do(t, err)
	if _, err := run.Step(inputs, targets); err == nil || !strings.Contains(err.Error(), "divisible") {
		t.Errorf("6 rows on 4 devices: %v", err)
	}
	if run.Steps() != 0 {
		t.Errorf("a failed step counts: %d", run.Steps())
	}
}
