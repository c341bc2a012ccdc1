package pipeline_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// deviceCount is the number of devices that a test opens, microRows the examples of a micro-batch.
const deviceCount, microRows = 8, 2

func devices(t testing.TB) *xla.Backend { t.Helper(); return devicetest.Open(t, deviceCount) }

// deep is a recipe of twelve blocks, enough for six ranks with two stages each; if tied the first and the last have a
// parameter in common.
func deep(tied bool) train.Recipe {
	return train.Recipe{Model: toy.Layers(12, tied), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
}

// scheduled builds a named schedule.
func scheduled(t testing.TB, kind pipeline.Kind, ranks, microbatches int) *step.Plan {
	t.Helper()
	s := must.Get(pipeline.NewSchedule(kind, ranks, microbatches, 0))(t)
	return s
}

// start begins a run, which ends with the test.
func start(t testing.TB, backend *xla.Backend, r train.Recipe, o pipeline.Options) train.Trainer {
	t.Helper()
	run, err := pipeline.New(context.Background(), backend, r, o)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	t.Cleanup(func() { _ = run.Close() })
	return run
}

// result is what training came to.
type result struct {
	metrics []train.Metrics
	params  traintest.Named
}

// train has a run train to a step.
func (r *result) train(t testing.TB, run train.Trainer, to int, batches traintest.Batches) {
	t.Helper()
	for run.Steps() < to {
		in, out := batches(run.Steps())
		m := must.Get(run.Step(context.Background(), in, out))(t)
		r.metrics = append(r.metrics, m)
	}
	r.params = must.Get(run.Params(context.Background()))(t)
}

// trained is a run from its beginning.
func trained(t testing.TB, backend *xla.Backend, r train.Recipe, o pipeline.Options, steps int,
	batches traintest.Batches) (all result) {
	t.Helper()
	run := start(t, backend, r, o)
	all.train(t, run, steps, batches)
	must.Do(t, run.Close())
	return all
}

// alone trains on one device.
func alone(t testing.TB, backend *xla.Backend, r train.Recipe, steps int, batches traintest.Batches) (all result) {
	t.Helper()
	all.params, all.metrics = traintest.Alone(t, backend, r, steps, batches)
	return all
}

// bound is by how many units in the last place of the largest parameter a run may differ from one device's: sums are
// made in another order. Of the runs here the furthest differed by 2.
const bound = 4

// near checks that two results have the same parameters and losses within the bound.
func near(t testing.TB, name string, got, want result) {
	t.Helper()
	if off := traintest.Apart(t, want.params, got.params); !(off <= bound) {
		t.Errorf("%s: %g units apart, want at most %d", name, off, bound)
	}
	for i, m := range got.metrics {
		if i < len(want.metrics) && !(math.Abs(m.Loss/want.metrics[i].Loss-1) < 1e-5) {
			t.Errorf("%s: step %d: loss %g, want %g", name, i, m.Loss, want.metrics[i].Loss)
		}
	}
}

// same checks that two results have the same bits.
func same(t testing.TB, name string, got, want result) {
	t.Helper()
	if p := traintest.Differ(want.params, got.params); p != "" {
		t.Errorf("%s: %s has other bits, at most %g units apart", name, p, traintest.Apart(t, want.params, got.params))
	}
}

// TestSchedules trains with every synchronous schedule, on several numbers of ranks: all are one device's within the
// bound, and have the same bits, but for those in which a stage is on two ranks.
func TestSchedules(t *testing.T) {
	const steps, m = 2, 12
	backend, r, batches := devices(t), deep(false), toy.Batches(m*microRows)
	one := alone(t, backend, r, steps, batches)
	var first *result
	for _, ranks := range []int{3, 6} {
		for _, kind := range pipeline.Kinds() {
			s, err := pipeline.NewSchedule(kind, ranks, m, 0)
			if err != nil || !kind.Synchronous() {
				continue
			}
			name := fmt.Sprintf("%s on %d ranks", kind, ranks)
			got := trained(t, backend, r, pipeline.Options{Schedule: s}, steps, batches)
			if near(t, name, got, one); kind == pipeline.KindDualPipe {
				continue
			}
			if first == nil {
				first = &got
			}
			same(t, name, got, *first)
		}
	}
}

// TestForms trains a model whose first and last block share a parameter: on one rank and in several pipelines, with
// uneven cuts, with recomputation, and with fused backward passes.
func TestForms(t *testing.T) {
	const steps, m = 2, 4
	backend, r := devices(t), deep(true)
	for _, c := range []struct {
		kind     pipeline.Kind
		ranks    int
		replicas int
		cut      []int
		change   func(o *pipeline.Options)
	}{
		{pipeline.KindNaive, 1, 1, nil, nil},
		{pipeline.KindGPipe, 3, 1, nil, func(o *pipeline.Options) { o.Recompute = true }},
		{pipeline.KindGPipe, 2, 2, nil, func(o *pipeline.Options) { o.Fused = true }},
		{pipeline.KindZBH2, 3, 1, []int{1, 10, 1}, func(o *pipeline.Options) { o.Recompute = true }},
		{pipeline.Kind1F1B, 4, 2, []int{1, 2, 3, 6}, nil},
		{pipeline.Kind1F1B, 2, 1, []int{11, 1}, func(o *pipeline.Options) { o.Recompute, o.Fused = true, true }},
		{pipeline.KindZBV, 3, 2, []int{2, 1, 4, 1, 1, 3}, func(o *pipeline.Options) { o.Recompute = true }},
		{pipeline.KindInterleaved, 2, 2, []int{1, 4, 5, 2}, nil},
		{pipeline.KindDualPipe, 2, 2, []int{4, 8}, nil},
	} {
		batches := toy.Batches(c.replicas * m * microRows)
		o := pipeline.Options{Schedule: scheduled(t, c.kind, c.ranks, m), Cut: c.cut, Replicas: c.replicas}
		if c.change != nil {
			c.change(&o)
		}
		name := fmt.Sprintf("%s on %d ranks, %d replicas, cut %v", c.kind, c.ranks, c.replicas, c.cut)
		near(t, name, trained(t, backend, r, o, steps, batches), alone(t, backend, r, steps, batches))
	}
}

// shuffled moves operations about, in ways that the check lets pass.
func shuffled(random *rand.Rand, s *step.Plan) (_ *step.Plan, moved int) {
	for range 100 {
		next := s.Clone()
		r := random.IntN(len(s.Ranks))
		from, to := random.IntN(len(s.Ranks[r])), random.IntN(len(s.Ranks[r]))
		op := s.Ranks[r][from]
		next.Ranks[r] = slices.Insert(slices.Delete(next.Ranks[r], from, from+1), to, op)
		if from != to && next.Check() == nil {
			s = next
			moved++
		}
	}
	return s, moved
}

// TestOrders trains in random orders, and in those that a search finds: the same bits.
func TestOrders(t *testing.T) {
	const steps, m = 2, 4
	backend, r, batches := devices(t), deep(false), toy.Batches(m*microRows)
	want := trained(t, backend, r, pipeline.Options{Schedule: scheduled(t, pipeline.KindGPipe, 2, m)}, steps, batches)
	random := rand.New(rand.NewPCG(5, 6))
	var all []*step.Plan
	for _, kind := range []pipeline.Kind{pipeline.KindGPipe, pipeline.KindZBH1, pipeline.KindZBV} {
		s, moved := shuffled(random, scheduled(t, kind, 3, m))
		if moved < 5 {
			t.Errorf("%s: only %d moves", kind, moved)
		}
		all = append(all, s)
	}
	costs := step.Costs{InputGrad: []float64{2}, WeightGrad: []float64{1.5},
		Link: func(_, _ int) float64 { return 0.7 }}
	for chunks := 1; chunks <= 2; chunks++ {
		s := must.Get(pipeline.Search(3, m, chunks, costs, 5))(t)
		all = append(all, s)
	}
	for _, s := range all {
		same(t, s.String(), trained(t, backend, r, pipeline.Options{Schedule: s}, steps, batches), want)
	}
}

// TestStochasticRounding trains in a half type with stochastic rounding, whose noise is that of the parameters wherever
// they are. A parameter may differ from one device's by its own last place where sums are rounded another way, and then
// learn something else; how far is a share of the largest parameter.
func TestStochasticRounding(t *testing.T) {
	const steps, m, share = 3, 4, 0.008
	policy := must.Get(precision.ParsePolicy("bf16-pure"))(t)
	policy.StochasticUpdate = true
	r := train.Recipe{Model: toy.Layers(3, true), Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9},
		Precision: policy}
	backend, batches := devices(t), toy.Batches(m*microRows)
	one := alone(t, backend, r, steps, batches)
	for _, o := range []pipeline.Options{
		{Schedule: scheduled(t, pipeline.Kind1F1B, 3, m)},
		{Schedule: scheduled(t, pipeline.KindGPipe, 2, m/2), Replicas: 2, Recompute: true},
	} {
		got := trained(t, backend, r, o, steps, batches)
		if off := traintest.Apart(t, one.params, got.params) * 0x1p-23; !(off <= share) {
			t.Errorf("%s: %g of the largest parameter from one device, want at most %g", o.Schedule.Name, off, share)
		}
	}
}

// TestMemory compares saved activations: of all micro-batches in GPipe, of a fixed number in 1F1B, and not of what is
// recomputed.
func TestMemory(t *testing.T) {
	backend, r := devices(t), deep(false)
	most := func(kind pipeline.Kind, m int, recompute bool) int64 {
		recorder := trace.New()
		o := pipeline.Options{Schedule: scheduled(t, kind, 3, m), Recompute: recompute, Trace: recorder}
		trained(t, backend, r, o, 1, toy.Batches(m*microRows))
		most := int64(0)
		for _, c := range recorder.Trace().Counters {
			if c.Rank == 1 && c.Name == string(memest.Activations) {
				most = max(most, c.Value)
			}
		}
		return most
	}
	gpipe, oneF := most(pipeline.KindGPipe, 8, false), most(pipeline.Kind1F1B, 8, false)
	if few := most(pipeline.Kind1F1B, 4, false); few != oneF || !(3*oneF < 2*gpipe) {
		t.Errorf("of 8 micro-batches GPipe saves %d bytes and 1F1B %d, of 4 %d", gpipe, oneF, few)
	}
	if again := most(pipeline.KindGPipe, 8, true); !(2*again < gpipe) {
		t.Errorf("GPipe saves %d bytes, and with recomputation %d", gpipe, again)
	}
}

// TestTrace: the spans of a rank's devices are the passes of its plan, in their order.
func TestTrace(t *testing.T) {
	const m, replicas = 4, 2
	backend, r := devices(t), deep(true)
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindZBV, pipeline.KindPipeDream} {
		if kind == pipeline.KindPipeDream {
			r = deep(false)
		}
		recorder := trace.New()
		o := pipeline.Options{Schedule: scheduled(t, kind, 2, m), Replicas: replicas, Fused: true, Trace: recorder}
		plan := must.Get(o.Plan(r))(t)
		trained(t, backend, r, o, 1, toy.Batches(replicas*m*microRows))
		for rank, list := range plan.Ranks {
			var want, got []string
			for _, op := range list {
				if op.Kind.Pass() && (op.Kind != step.InputGrad || op.Block > 0) { // the batch has no gradient
					want = append(want, plan.Text(op))
				}
			}
			for _, s := range trace.Of(recorder.Trace().Spans, rank, trace.Compute) {
				got = append(got, s.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, rank %d computes %v, want %v", kind, rank, got, want)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }
