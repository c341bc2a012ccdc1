package train_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// eight is the eight devices of all tests of shared models.
var eight = sync.OnceValue(func() *xla.Backend {
	backend, err := xla.Open(xla.Devices(8), xla.Plugin("cpu"))
	if err != nil {
		panic(fmt.Errorf("no devices to test on: %w", err))
	}
	return backend
})

// way is a layout of a model and a batch on devices. An axis of size 0 is absent; the zero way is one device.
type way struct {
	data, ring, ulysses, tensor int

	sequence, overlap bool // as tensor.Group has them
	gather            bool // as sequence.Group has it
	placement         sequence.Placement
}

func (w way) String() string {
	name := fmt.Sprintf("data=%d ring=%d ulysses=%d tensor=%d %s", w.data, w.ring, w.ulysses, w.tensor, w.placement)
	for _, o := range []struct {
		set  bool
		name string
	}{{w.gather, "gather"}, {w.sequence, "sequence"}, {w.overlap, "overlap"}} {
		if o.set {
			name += " " + o.name
		}
	}
	return strings.TrimSpace(name)
}

func (w way) devices() int {
	return max(1, w.data) * max(1, w.ring) * max(1, w.ulysses) * max(1, w.tensor)
}

// model adds tensor and sequence parallelism to a model.
func (w way) model(c gpt.Config) gpt.Parallel {
	m := gpt.Parallel{Config: c}
	if w.tensor > 0 {
		m.Tensor = tensor.Group{Axis: "tensor", Sequence: w.sequence, Overlap: w.overlap}
	}
	if w.ring > 0 {
		m.Sequence.Ring, m.Sequence.Placement, m.Sequence.Gather = "ring", w.placement, w.gather
	}
	if w.ulysses > 0 {
		m.Sequence.Ulysses = "ulysses"
	}
	return m
}

func (w way) mesh(t testing.TB) *xla.Mesh {
	t.Helper()
	axes := []xla.MeshAxis{xla.Axis(train.Axis, max(1, w.data))}
	for i, size := range []int{w.ring, w.ulysses, w.tensor} {
		if size > 0 {
			axes = append(axes, xla.Axis([]string{"ring", "ulysses", "tensor"}[i], size))
		}
	}
	mesh := must.Get(eight().Mesh(axes...))(t)
	return mesh
}

// run starts a run of a recipe for one device's gpt.Config, with the layout's parallelism.
func (w way) run(t testing.TB, r train.Recipe) *train.Run {
	t.Helper()
	if w != (way{}) {
		r.Model = w.model(r.Model.(gpt.Config))
	}
	run, err := ddp.NewSPMD(w.mesh(t), r)
	if err != nil {
		t.Fatalf("%v: %v", w, err)
	}
	t.Cleanup(func() { run.Close() })
	return run
}

// tokens returns batches of four random sequences. There are four different batches, so that there is something to
// learn.
func tokens(c gpt.Config, step int) (inputs, targets *tensors.Tensor) {
	random := rand.New(rand.NewPCG(11, uint64(step%4)))
	of := func() *tensors.Tensor {
		flat := make([]int32, rows*c.Seq)
		for i := range flat {
			flat[i] = random.Int32N(int32(c.Vocab))
		}
		return tensors.FromFlatDataAndDimensions(flat, rows, c.Seq)
	}
	return of(), of()
}

const rows = 4 // of a batch

// trainTo trains up to a step.
func trainTo(t testing.TB, run *train.Run, c gpt.Config, last int) (all []train.Metrics) {
	t.Helper()
	for run.Steps() < last {
		m := must.Get(run.Step(tokens(c, run.Steps())))(t)
		all = append(all, m)
	}
	return all
}

// bounds limit how much training may differ from that on one device.
type bounds struct {
	losses    float64 // of 20 steps: absolute; norms are held to the larger of the two, relatively
	gradients float64 // of the first step, of each parameter in its largest
}

// inFloat32 is for float32 sums in another order: gradients differ by a few units in the last place, 2⁻²³ = 1.2e-7, of
// the largest (up to 6e-7 was measured), and losses of about 4 over 20 steps by a few of theirs (up to 2e-6).
var inFloat32 = bounds{losses: 1e-5, gradients: 2e-6}

// hold trains a recipe with AdamW for 20 steps on one device and in other layouts. It compares losses, norms and the
// first gradients with those of one device, and the traffic of a step with theory. It returns the runs; the first is on
// one device.
func hold(t *testing.T, r train.Recipe, b bounds, ways ...way) (runs []*train.Run) {
	t.Helper()
	c := r.Model.(gpt.Config)
	var first []*tensors.Tensor
	var want []train.Metrics
	for _, w := range append([]way{{}}, ways...) {
		run := w.run(t, r)
		runs = append(runs, run)
		got := trainTo(t, run, c, 1)
		moments := state(t, run)
		got = append(got, trainTo(t, run, c, 20)...)
		if want == nil {
			want, first = got, moments
			continue
		}
		var loss, norm, gradient float64
		for i, m := range got {
			loss = max(loss, apart(m.Loss, want[i].Loss))
			if !m.Skipped && r.Clip > 0 { // else it is not finite, or not computed
				norm = max(norm, apart(m.GradNorm, want[i].GradNorm)/want[i].GradNorm)
			}
			if m.Skipped != want[i].Skipped || m.Scale != want[i].Scale {
				t.Errorf("%v: step %d: %+v, on one device %+v", w, i, m, want[i])
			}
		}
		of := ""
		for i, s := range r.State() {
			if strings.HasSuffix(s.Name, ".m") { // a tenth of the first gradient
				if d := differs(moments[i], first[i]); d > gradient {
					gradient, of = d, s.Name
				}
			}
		}
		t.Logf("%v: losses differ by %.2g, norms by %.2g of theirs, gradients by %.2g (%s)", w, loss, norm, gradient,
			of)
		if !(loss <= b.losses) || !(norm <= max(b.losses, b.gradients)) || !(gradient <= b.gradients) {
			t.Errorf("%v: losses differ from one device's by %g, norms by %g of theirs, and gradients by %g of the "+
				"largest of %s: want at most %+v", w, loss, norm, gradient, of, b)
		}
		here := state(t, run)
		there := must.Get(run.State(w.devices() - 1))(t)
		if r.Precision == (precision.Policy{}) && c.Recompute == "" && c.Dropout == 0 { // which theory leaves out
			if got, want := report(t, run), w.step(t, c, rows, r.Clip > 0); !maps.Equal(got, want) {
				t.Errorf("%v: a step moves %v, want %v", w, got, want)
			}
		}
		for i, s := range r.State() {
			if !here[i].Equal(there[i]) {
				t.Errorf("%v: %s differs on the first and the last device", w, s.Name)
			}
		}
	}
	return runs
}

// apart is infinite if one of the two is NaN.
func apart(a, b float64) float64 {
	if d := math.Abs(a - b); !math.IsNaN(d) {
		return d
	}
	return math.Inf(1)
}

// differs is the largest difference of float32 values relative to the largest value.
func differs(got, want *tensors.Tensor) (worst float64) {
	largest, x := 1e-30, tensors.MustCopyFlatData[float32](got)
	for i, y := range tensors.MustCopyFlatData[float32](want) {
		largest, worst = max(largest, math.Abs(float64(y))), max(worst, apart(float64(x[i]), float64(y)))
	}
	return worst / largest
}
