package train_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

var tiny = gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 8, Vocab: 128}

func policy(t *testing.T, name string) precision.Policy {
	t.Helper()
	p := must.Get(precision.ParsePolicy(name))(t)
	return p
}

// start begins a run on one device.
func start(t *testing.T, r train.Recipe) *train.Run {
	t.Helper()
	mesh := must.Get(devicetest.One().Mesh(xla.Axis(train.Axis, 1)))(t)
	run := must.Get(train.New(mesh, r))(t)
	t.Cleanup(func() { run.Close() })
	return run
}

// steps trains on the reference text up to a step and returns the losses.
func steps(t *testing.T, run *train.Run, c gpt.Config, batch, to int) []float64 {
	t.Helper()
	batches := must.Get(gpt.Reference().Batches(c, batch))(t)
	return stepsOn(t, run, batches.Step, to)
}

func stepsOn(t *testing.T, run *train.Run, batch func(step int) (inputs, targets *tensors.Tensor, err error),
	to int) (losses []float64) {
	t.Helper()
	for run.Steps() < to {
		inputs, targets, err := batch(run.Steps())
		must.Do(t, err)
		m := must.Get(run.Step(inputs, targets))(t)
		losses = append(losses, m.Loss)
	}
	return losses
}

func state(t *testing.T, run *train.Run) []*tensors.Tensor {
	t.Helper()
	values := must.Get(run.State(0))(t)
	return values
}

// The losses of JAX 0.10.2 and PyTorch 2.15.0 for the same architecture, initial weights, text and AdamW, in float32;
// the two agree to 1e-5. (Those of the default size are tested in lib/gpt.)
func TestReferenceLosses(t *testing.T) {
	for _, c := range []struct {
		layers, d, heads, seq, batch int
		want                         []float64
	}{
		{2, 128, 4, 64, 8, []float64{5.54506, 5.24437, 5.04355, 4.92261}},
		{1, 40, 5, 100, 3, []float64{5.55604, 5.53645, 5.51909, 5.49006}},
	} {
		config := gpt.Config{Layers: c.layers, Width: c.d, Heads: c.heads, Seq: c.seq, Vocab: 256}
		run := start(t, train.Recipe{Model: config, Optimizer: optim.AdamW(3e-4)})
		got := steps(t, run, config, c.batch, len(c.want))
		for i, want := range c.want {
			if math.Abs(got[i]-want) > 1e-4 {
				t.Errorf("%+v: loss %.5f at step %d, want %.5f", c, got[i], i+1, want)
			}
		}
	}
}

// TestPrecisions trains in every precision. All learn the text nearly as in float32, within a few times the error of
// the type that they compute or store parameters in, and the coarser ones do differ from float32.
func TestPrecisions(t *testing.T) {
	const n, batch = 12, 4
	rule := optim.AdamW(1e-2)
	exact := steps(t, start(t, train.Recipe{Model: tiny, Optimizer: rule}), tiny, batch, n)
	bounds := map[string]float64{
		"fp32": 0,
		"tf32": 0.0005, "fp16": 0.0005, "fp16-pure": 0.0015, // 11 bits
		"bf16": 0.01, "bf16-pure": 0.025, // 8 bits
		"fp8": 0.05, // 4 bits
	}
	for _, name := range precision.Names() {
		bound, ok := bounds[name]
		if !ok {
			t.Errorf("%s: the test has no bound for it", name)
			continue
		}
		p := policy(t, name)
		c := tiny
		c.Matmul = p.Matmul
		losses := steps(t, start(t, train.Recipe{Model: c, Optimizer: rule, Precision: p}), c, batch, n)
		worst := 0.0
		for i := range losses {
			if diff := math.Abs(losses[i] - exact[i]); !(diff <= worst) { // a NaN is the worst
				worst = diff
			}
		}
		t.Logf("%-10s %.4f, at most %.4f from float32", name, losses, worst)
		if !(worst <= bound) || (worst == 0) != (name == "fp32") {
			t.Errorf("%s: losses %.4f, in float32 %.4f: at most %g apart, want up to %g", name, losses, exact, worst,
				bound)
		}
		if !(losses[n-1] < losses[0]-1) {
			t.Errorf("%s: the loss went from %.3f to %.3f", name, losses[0], losses[n-1])
		}
	}
}

// line is a model with one parameter w of two elements: its loss is the mean of w·x + y over the batch, so its gradient
// is the mean of the rows x, and infinite where x is.
type line struct{ w []float32 }

func (m line) Validate() error     { return nil }
func (m line) Params() params.Tree { return params.Tree{params.New("w", dtypes.Float32, len(m.w))} }
func (m line) Init() ([]*tensors.Tensor, error) {
	return []*tensors.Tensor{tensors.FromValue(m.w)}, nil
}
func (m line) Loss(p params.Nodes, x, y *graph.Node) *graph.Node {
	w := p.Get("w")
	products := graph.Mul(graph.ConvertDType(x, w.DType()), graph.ExpandLeftToRank(w, 2))
	return graph.ReduceAllMean(graph.ConvertDType(graph.ReduceSum(products, -1), dtypes.Float32))
}

// A step whose gradients overflow is skipped: it halves the scale and changes nothing else, bit for bit, and the run
// continues as if that batch had not been there.
func TestOverflowIsSkipped(t *testing.T) {
	p := policy(t, "fp16")
	p.Scaling = precision.Scaling{Initial: 1024, Interval: 3, Growth: 2, Backoff: 0.5}
	recipe := train.Recipe{Model: line{[]float32{1, -2}}, Optimizer: optim.AdamW(0.1), Precision: p, Clip: 100}
	run, clean := start(t, recipe), start(t, recipe)
	y := tensors.FromValue([][]float32{{0, 0}})
	one := func(run *train.Run, x0, x1 float32) train.Metrics {
		t.Helper()
		m := must.Get(run.Step(tensors.FromValue([][]float32{{x0, x1}}), y))(t)
		return m
	}
	tree := recipe.State()
	at := func(name string) int { return tree.Index(name) }
	one(run, 0.5, 0.25)
	one(clean, 0.5, 0.25)
	before := state(t, run)
	// 100·1024 is more than float16's largest, 65504; so the scaled gradient is infinite, though the unscaled one is
	// not.
	m := one(run, 100, 1)
	if !m.Skipped || m.Scale != 1024 {
		t.Errorf("an overflow: %+v", m)
	}
	after := state(t, run)
	for i, s := range tree {
		same := after[i].Equal(before[i])
		if changes := slices.Contains([]string{"train.steps", "train.scale", "train.good"}, s.Name); same == changes {
			t.Errorf("%s: %v before the overflow, %v after", s.Name, before[i].Value(), after[i].Value())
		}
	}
	if scale := after[at("train.scale")].Value().(float32); scale != 512 {
		t.Errorf("scale %g, want 512", scale)
	}
	for i, x := range []float32{0.25, 1, -0.5, 2} {
		if m := one(run, x, x); m.Skipped {
			t.Errorf("step %d: %+v", i, m)
		}
		one(clean, x, x)
	}
	// it has grown after three good steps
	if scale := state(t, run)[at("train.scale")].Value().(float32); scale != 1024 {
		t.Errorf("scale %g, want 1024", scale)
	}
	got, want := state(t, run), state(t, clean)
	for _, name := range []string{"w", "w.m", "w.v", "train.updates"} {
		// The scales are powers of two, and the gradients neither over- nor underflow: not a bit may differ.
		if i := at(name); !got[i].Equal(want[i]) {
			t.Errorf("%s is %v, of a run without the overflow %v", name, got[i].Value(), want[i].Value())
		}
	}
	if m := one(run, float32(math.NaN()), 1); !m.Skipped {
		t.Errorf("a NaN: %+v", m)
	}
}

// Updates too small for the parameter's type have no effect without master weights; with stochastic rounding they have
// it on average.
func TestSmallUpdates(t *testing.T) {
	const n, lr = 64, 1.0 / 1024 // a quarter of the distance between bfloat16 numbers below 1, 2⁻⁸
	w := slices.Repeat([]float32{1}, 256)
	x := tensors.FromValue([][]float32{slices.Repeat([]float32{1}, 256)})
	mean := func(name string, stochastic bool) float64 {
		p := policy(t, name)
		p.StochasticUpdate = stochastic
		run := start(t, train.Recipe{Model: line{w}, Optimizer: optim.SGD(lr), Precision: p, Seed: 3})
		for range n {
			must.Get(run.Step(x, x))(t)
		}
		values := must.Get(run.Params(0))(t)
		sum := 0.0
		switch p.Params {
		case dtypes.Float32:
			for _, v := range tensors.MustCopyFlatData[float32](values[0]) {
				sum += float64(v)
			}
		default:
			run := must.Get(run.Probe(func(p params.Nodes, _ []*graph.Node) []*graph.Node {
				return []*graph.Node{graph.ReduceAllSum(graph.ConvertDType(p.Get("w"), dtypes.Float32))}
			}))(t)
			out := must.Get(run.Call())(t)
			sum = float64(tensors.ToScalar[float32](out[0]))
		}
		return sum / 256
	}
	const want = 1 - n*lr // 0.9375
	if got := mean("bf16", false); math.Abs(got-want) > 1e-6 {
		t.Errorf("with a master copy: %g, want %g", got, want)
	}
	if got := mean("bf16-pure", false); got != 1 {
		t.Errorf("without a master copy: %g, want 1: each update is less than half of the last place", got)
	}
	// Each of 64 updates moves an element by 2⁻⁸ with a probability of a quarter: the standard deviation of the mean of
	// 256 is √(64·3/16)/256/16 = 0.0008.
	if got := mean("bf16-pure", true); math.Abs(got-want) > 0.004 {
		t.Errorf("with stochastic rounding: %g, want %g", got, want)
	}
}

// A run continues from a checkpoint bit for bit as the saved run does. (The command's tests do it in another process.)
func TestResume(t *testing.T) {
	noisy := tiny
	noisy.Dropout = 0.1
	half := policy(t, "bf16-pure")
	half.StochasticUpdate = true
	const elements = 5000 // enough for 8-bit Adam to quantise its states
	random := func(step int) (x, y *tensors.Tensor, err error) {
		flat, next := make([]float32, elements), rand.New(rand.NewPCG(1, uint64(step)))
		for i := range flat {
			flat[i] = float32(next.NormFloat64())
		}
		x = tensors.FromFlatDataAndDimensions(flat, 1, elements)
		return x, x, nil
	}
	// which compiles faster
	mostlyAdam := optim.Grouped(optim.AdamW(1e-2), optim.Group{Has: optim.Named("tok"),
		Optimizer: optim.Adafactor(1e-2)})
	text := must.Get(gpt.Reference().Batches(tiny, 3))(t)
	for name, c := range map[string]struct {
		recipe train.Recipe
		batch  func(step int) (inputs, targets *tensors.Tensor, err error)
	}{
		"dropout, Adafactor, cosine, fp16": {train.Recipe{Model: noisy,
			Optimizer: optim.Scheduled(mostlyAdam, optim.Cosine{Steps: 8}),
			Precision: policy(t, "fp16"), Clip: 0.5, Seed: 5}, text.Step},
		"8-bit Adam": {train.Recipe{Model: line{make([]float32, elements)}, Optimizer: optim.Adam8bit(1e-2)}, random},
		"stochastic, momentum": {train.Recipe{Model: line{make([]float32, elements)},
			Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9},
			Precision: half, Seed: 6}, random},
	} {
		t.Run(name, func(t *testing.T) {
			run := start(t, c.recipe)
			to := func(step int) []float64 { return stepsOn(t, run, c.batch, step) }
			to(3)
			path := must.Get(run.Save(context.Background(), t.TempDir(), "settings", 1))(t)
			want, end := to(6), state(t, run)
			saved := must.Get(checkpoint.Open(path))(t)
			must.Do(t, run.Load(context.Background(), saved))
			if got := to(6); !slices.Equal(got, want) {
				t.Errorf("losses %v, without a stop %v", got, want)
			}
			for i, v := range state(t, run) {
				if !v.Equal(end[i]) {
					t.Errorf("%s differs", c.recipe.State()[i].Name)
				}
			}
		})
	}
}

func TestLoadErrors(t *testing.T) {
	ctx := context.Background()
	of := func(n int, rule optim.Optimizer) *train.Run {
		return start(t, train.Recipe{Model: line{make([]float32, n)}, Optimizer: rule})
	}
	run := of(3, optim.AdamW(1e-2))
	x := tensors.FromValue([][]float32{{1, 2, 3}})
	must.Get(run.Step(x, x))(t)
	path := must.Get(run.Save(ctx, t.TempDir(), nil, 0))(t)
	saved := must.Get(checkpoint.Open(path))(t)
	for name, c := range map[string]struct {
		run  *train.Run
		want string
	}{
		"another size":           {of(4, optim.AdamW(1e-2)), "w has shape [3] in the checkpoint, [4] in the model"},
		"fewer optimizer states": {of(3, optim.Lion(1e-2)), `has "w.v", which this run does not have`},
		"other optimizer states": {of(3, optim.SGDOptimizer{LR: 1, Momentum: 0.5}),
			`has "w.m", which this run does not have`},
	} {
		before := state(t, c.run)
		if err := c.run.Load(ctx, saved); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		for i, v := range state(t, c.run) {
			if !v.Equal(before[i]) || c.run.Steps() != 0 {
				t.Errorf("%s: the run has changed", name)
			}
		}
	}
}

// A diverged state is not saved, and does not replace earlier checkpoints.
func TestDivergedRunIsNotSaved(t *testing.T) {
	for _, name := range []string{"fp32", "bf16-pure", "fp16-pure"} {
		p := policy(t, name)
		p.Scaling = precision.Scaling{}
		run, dir := start(t, train.Recipe{Model: line{[]float32{1}}, Optimizer: optim.SGD(1), Precision: p}),
			t.TempDir()
		for _, x := range []float32{1, float32(math.Inf(1))} {
			if _, err := run.Step(tensors.FromValue([][]float32{{x}}),
				tensors.FromValue([][]float32{{0}})); err != nil {
				t.Fatal(err)
			}
			_, err := run.Save(context.Background(), dir, nil, 1)
			if diverged := x > 1; diverged != (err != nil) || diverged &&
				!strings.Contains(err.Error(), "w has NaNs or infinities after step 2") {
				t.Errorf("%s: after x = %g: error %v", name, x, err)
			}
		}
		if path, err := checkpoint.Latest(dir); err != nil || !strings.HasSuffix(path, "1") {
			t.Errorf("%s: the latest checkpoint is %s, error %v", name, path, err)
		}
	}
}

// Clipping scales all gradients to the given norm: with plain SGD the parameters move by just that.
func TestClip(t *testing.T) {
	run := start(t, train.Recipe{Model: line{[]float32{0, 0}}, Optimizer: optim.SGD(1), Clip: 0.5})
	m, err := run.Step(tensors.FromValue([][]float32{{3, 4}}), tensors.FromValue([][]float32{{0, 0}}))
	if err != nil || math.Abs(m.GradNorm-5) > 1e-6 {
		t.Errorf("%+v, error %v; the norm of (3,4) is 5", m, err)
	}
	w := tensors.MustCopyFlatData[float32](state(t, run)[0])
	if math.Abs(float64(w[0])+0.3) > 1e-6 || math.Abs(float64(w[1])+0.4) > 1e-6 {
		t.Errorf("parameters %v, want [-0.3 -0.4]", w)
	}
}

func TestRecipeErrors(t *testing.T) {
	mesh := must.Get(devicetest.One().Mesh(xla.Axis(train.Axis, 1)))(t)
	other := must.Get(devicetest.One().Mesh(xla.Axis("tensor", 1)))(t)
	good := train.Recipe{Model: tiny, Optimizer: optim.AdamW(1e-3)}
	change := func(f func(*train.Recipe)) train.Recipe { r := good; f(&r); return r }
	for _, c := range []struct {
		mesh   *xla.Mesh
		recipe train.Recipe
		want   string
	}{
		{other, good, `"tensor"`},
		{nil, good, "the mesh is nil: make one"},
		{mesh, train.Recipe{}, "no model or no optimizer"},
		{mesh, change(func(r *train.Recipe) { r.Model = barren{tiny} }),
			"of type train_test.barren, has no parameters"},
		{mesh, change(func(r *train.Recipe) { r.Model = gpt.Config{} }), "Layers"},
		{mesh, change(func(r *train.Recipe) { r.Optimizer = optim.AdamW(-1) }), "LR"},
		{mesh, change(func(r *train.Recipe) { r.Clip = -1 }), "Recipe.Clip is -1"},
		{mesh, change(func(r *train.Recipe) { r.Precision.Params = dtypes.Int32 }), "Policy.Params"},
		{mesh, change(func(r *train.Recipe) { r.Precision = policy(t, "tf32") }), "gpt.Config.Matmul"},
	} {
		if _, err := train.New(c.mesh, c.recipe); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	if _, err := train.NewAuto(nil, good, nil); err == nil || !strings.Contains(err.Error(), "the mesh is nil") {
		t.Errorf("no mesh for the compiler: %v", err)
	}
}

// TestPicky steps with a batch that the model rejects: the run does not change.
func TestPicky(t *testing.T) {
	picky := start(t, train.Recipe{Model: toy.Picky(), Optimizer: optim.SGD(1)})
	_, err := picky.Step(toy.Batch(0, 4))
	if fmt.Sprint(err) != "train: step 0: toy: not this batch: give another" {
		t.Errorf("error %v", err)
	}
	if len(state(t, picky)) == 0 || picky.Steps() != 0 {
		t.Errorf("after it: %d steps", picky.Steps())
	}
}

// barren is a model without parameters.
type barren struct{ train.Model }

func (barren) Params() params.Tree { return nil }

// The new state reuses the old one's memory, so the device has one state, and none after Close.
func TestStateIsDonated(t *testing.T) {
	backend := devicetest.Open(t, 1)
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	must.Do(t, err)
	r := train.Recipe{Model: line{make([]float32, 1000)}, Optimizer: optim.AdamW(1e-3)}
	run := must.Get(train.New(mesh, r))(t)
	x := tensors.FromScalarAndDimensions(float32(1), 1, 1000)
	for range 3 {
		must.Get(run.Step(x, x))(t)
	}
	m, err := run.Memory()
	if err != nil || m.Aliased < r.State().Bytes() {
		t.Errorf("%d of the state's %d bytes are donated, error %v", m.Aliased, r.State().Bytes(), err)
	}
	if live := backend.Live()[0].Bytes; live != r.State().Bytes() {
		t.Errorf("%d bytes on the device, the state has %d", live, r.State().Bytes())
	}
	if err := run.Close(); err != nil {
		t.Error(err)
	}
	if live := backend.Live()[0].Bytes; live != 0 {
		t.Errorf("%d bytes on the device after Close", live)
	}
}
