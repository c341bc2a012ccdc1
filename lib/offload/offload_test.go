package offload_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

const host, device = offload.Host, offload.Device

func mesh(t testing.TB, b *xla.Backend) *xla.Mesh {
	t.Helper()
	m, err := b.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// toy is a chain that compiles fast and does not blow rounding up: 6 features to 4, two blocks of one kind, and back by the same matrix. Its blocks
// have inputs of 96, 64, 64 and 64 bytes for a batch of 4; its parameters, 280 bytes.
func toy() chain.Model {
	const f32 = dtypes.Float32
	dot := func(x, w *graph.Node, axis int) *graph.Node {
		return graph.DotGeneral(graph.ConvertDType(x, w.DType()), []int{1}, nil, w, []int{axis}, nil)
	}
	plus := func(x, b *graph.Node) *graph.Node { return graph.Add(x, graph.ExpandLeftToRank(b, 2)) }
	table := params.New("in.w", f32, 6, 4)
	blocks := []chain.Block{{Name: "in", Params: params.Tree{table}, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
		return graph.Tanh(dot(x, p.Get("in.w"), 0))
	}}}
	for _, name := range []string{"h0", "h1"} {
		tree := params.Tree{params.New(name+".w", f32, 4, 4), params.New(name+".b", f32, 4)}
		blocks = append(blocks, chain.Block{Name: name, Kind: "h", Params: tree, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			return graph.Add(x, graph.Tanh(plus(dot(x, p.Get(name+".w"), 0), p.Get(name+".b"))))
		}})
	}
	out := params.Tree{table, params.New("out.b", f32, 6)}
	blocks = append(blocks, chain.Block{Name: "out", Params: out, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
		return plus(dot(x, p.Get("in.w"), 1), p.Get("out.b"))
	}})
	m := chain.Model{Blocks: blocks, Criterion: func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(graph.ConvertDType(y, f32), targets)))
	}}
	m.Initial = func() ([]*tensors.Tensor, error) { return uniform(m.Params(), 1), nil }
	return m
}

// toyBatch is the batch of a step: random inputs, which are their own targets.
func toyBatch(step int) (inputs, targets *tensors.Tensor) {
	x := func() *tensors.Tensor {
		return uniform(params.Tree{params.New("x", dtypes.Float32, 4, 6)}, uint64(step+2))[0]
	}
	return x(), x()
}

// uniform returns random tensors for a tree, between −1 and 1.
func uniform(tree params.Tree, seed uint64) (values []*tensors.Tensor) {
	random := rand.New(rand.NewPCG(seed, 0))
	for _, s := range tree {
		flat := make([]float32, s.Size())
		for i := range flat {
			flat[i] = 2*random.Float32() - 1
		}
		values = append(values, tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...))
	}
	return values
}

// start begins a run on the shared device.
func start(t testing.TB, m chain.Model, rule optim.Rule, o offload.Options) *offload.Run {
	t.Helper()
	return startOn(t, devicetest.One(), m, rule, o)
}

func startOn(t testing.TB, b *xla.Backend, m chain.Model, rule optim.Rule, o offload.Options) *offload.Run {
	t.Helper()
	run, err := offload.New(mesh(t, b), m, rule, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	})
	return run
}

// batches gives the batch of a step.
type batches func(step int) (inputs, targets *tensors.Tensor)

// result is what a run has learned.
type result struct {
	losses         []float64
	params, states []*tensors.Tensor
}

// learn trains up to a step.
func learn(t testing.TB, run *offload.Run, of batches, steps int) (r result) {
	t.Helper()
	for run.Steps() < steps {
		inputs, targets := of(run.Steps())
		loss, err := run.Step(t.Context(), inputs, targets)
		if err != nil {
			t.Fatal(err)
		}
		r.losses = append(r.losses, loss)
	}
	var err, err2 error
	r.params, err = run.Params()
	if r.states, err2 = run.State(); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return r
}

// reference is the same by train.New: one program, everything on the device.
func reference(t testing.TB, m train.Model, rule optim.Rule, p precision.Policy, of batches, steps int) (r result) {
	t.Helper()
	run, err := train.New(mesh(t, devicetest.One()), train.Recipe{Model: m, Rule: rule, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for run.Steps() < steps {
		inputs, targets := of(run.Steps())
		m, err := run.Step(inputs, targets)
		if err != nil {
			t.Fatal(err)
		}
		r.losses = append(r.losses, m.Loss)
	}
	all, err := run.State(0)
	if err != nil {
		t.Fatal(err)
	}
	r.params, r.states = cut(m, rule, all)
	return r
}

// plainly is reference in plain Go, which has nothing to compile.
func plainly(t testing.TB, m train.Model, rule optim.Rule, p precision.Policy, of batches, steps int) (r result) {
	t.Helper()
	recipe := train.Recipe{Model: m, Rule: rule, Precision: p}
	state, err := recipe.Initial()
	if err != nil {
		t.Fatal(err)
	}
	exec, err := graph.NewExec(devicetest.PureGo(), recipe.Graph)
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Finalize()
	for step := range steps {
		inputs, targets := of(step)
		out, err := exec.Call(append(state, inputs, targets))
		if err != nil {
			t.Fatal(err)
		}
		last := len(out) - 1
		state = out[:last]
		r.losses = append(r.losses, float64(tensors.MustCopyFlatData[float32](out[last])[0]))
	}
	r.params, r.states = cut(m, rule, state)
	return r
}

// cut takes parameters and states of a rule out of the state of a train.Recipe.
func cut(m train.Model, rule optim.Rule, all []*tensors.Tensor) (values, states []*tensors.Tensor) {
	n := len(m.Params())
	return all[:n], all[n : n+len(optim.States(rule, m.Params()))]
}

// distance returns the largest difference between losses, parameters and states, each relative to the largest element
// of its tensor.
func distance(t testing.TB, a, b result) float64 {
	t.Helper()
	if len(a.losses) != len(b.losses) || len(a.params) != len(b.params) || len(a.states) != len(b.states) {
		t.Fatalf("%d losses, %d parameters and %d states; and %d, %d and %d", len(a.losses), len(a.params), len(a.states),
			len(b.losses), len(b.params), len(b.states))
	}
	worst := 0.0
	compare := func(n int, x, y func(i int) float64) {
		largest, differ := 0.0, 0.0
		for i := range n {
			largest, differ = max(largest, math.Abs(y(i))), max(differ, math.Abs(x(i)-y(i))) // NaN stays NaN
		}
		if differ != 0 {
			worst = max(worst, differ/largest)
		}
	}
	for i := range b.losses {
		compare(1, func(int) float64 { return a.losses[i] }, func(int) float64 { return b.losses[i] })
	}
	for _, pair := range [][2][]*tensors.Tensor{{a.params, b.params}, {a.states, b.states}} {
		for i, x := range pair[0] {
			if !x.Shape().Equal(pair[1][i].Shape()) {
				t.Fatalf("tensor %d has shape %s, and %s", i, x.Shape(), pair[1][i].Shape())
			}
			x, y := tensors.MustCopyFlatData[float32](x), tensors.MustCopyFlatData[float32](pair[1][i])
			compare(len(x), func(k int) float64 { return float64(x[k]) }, func(k int) float64 { return float64(y[k]) })
		}
	}
	return worst
}

// noLeak fails if there are more goroutines than before, and stay.
func noLeak(t testing.TB, before int) {
	t.Helper()
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

// matches reports whether an error contains a text.
func matches(err error, want string) bool { return err != nil && strings.Contains(err.Error(), want) }
