package ddp_test

import (
	"context"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// alone trains on one device, in one program over whole batches.
func alone(t *testing.T, backend *xla.Backend, r train.Recipe, steps int, batches source) result {
	t.Helper()
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		t.Fatal(err)
	}
	run, err := train.New(mesh, r)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	own := result{losses: stepped(t, run, steps, batches)}
	values, err := run.Params(0)
	if err != nil {
		t.Fatal(err)
	}
	own.params, err = params.Zip(r.Model.Params(), values)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// apart is the largest difference between parameters, in units of the last place of the largest one, of 2⁻²³ of it.
func apart(a, b params.Named[*tensors.Tensor]) (ulps float64) {
	var worst, largest float64
	for name := range a {
		x, y := tensors.MustCopyFlatData[float32](a[name]), tensors.MustCopyFlatData[float32](b[name])
		for i := range x {
			d := math.Abs(float64(x[i]) - float64(y[i]))
			if worst = max(worst, d); d != d {
				return math.NaN()
			}
			largest = max(largest, math.Abs(float64(x[i])))
		}
	}
	return worst / (largest * 0x1p-23)
}

// TestEqualsWholeBatch holds ranks against one program over the whole batch, after 20 steps of SGD with momentum, whose
// rounding does not grow: within 8 units in the last place of the largest
// parameter (about one was seen). With dropout, which a row has wherever it is.
func TestEqualsWholeBatch(t *testing.T) {
	const steps, bound = 20, 8
	backend := devicetest.Open(t, 8)
	check := func(what string, want, got result) {
		t.Helper()
		ulps := apart(want.params, got.params)
		t.Logf("%s: %.1f units in the last place", what, ulps)
		if !(ulps <= bound) {
			t.Errorf("%s: %.1f units in the last place from one device, want at most %d", what, ulps, bound)
		}
		for step := range want.losses {
			if diff := got.losses[step]/want.losses[step] - 1; !(math.Abs(diff) < 1e-5) {
				t.Errorf("%s, step %d: loss %v, want %v", what, step, got.losses[step], want.losses[step])
			}
		}
	}
	recipe := train.Recipe{Model: toy.Model(true), Rule: optim.SGDRule{LR: 0.1, Momentum: 0.9}}
	e := newEngine(t, backend, recipe, ddp.Options{BucketBytes: 160})
	micro := newEngine(t, backend, recipe, ddp.Options{Accumulate: 2})
	each := newEngine(t, backend, recipe, ddp.Options{Accumulate: 2, EachMicroBatch: true})
	for _, world := range []int{1, 3, 8} { // of the others, TestEqualsAccumulation
		batches := toySource(4 * world)
		want := alone(t, backend, recipe, steps, batches)
		for what, e := range map[string]*ddp.Engine{"buckets": e, "micro-batches": micro, "each micro-batch": each} {
			check(what, want, together(t, e, world, steps, batches)[0])
		}
	}
	c := tiny
	c.Dropout, c.Tied = 0.2, true
	recipe = train.Recipe{Model: c, Rule: optim.SGD(0.1), Seed: 7}
	batches := textSource(t, c, 12)
	want := alone(t, backend, recipe, steps, batches)
	for _, o := range []ddp.Options{{Accumulate: 2}, {Accumulate: 2, Recompute: true, Sync: ddp.Server}} {
		check("dropout "+string(o.Sync), want, together(t, newEngine(t, backend, recipe, o), 3, steps, batches)[0])
	}
}

// TestPrecisions trains with a master copy and without, with and without loss scaling, which begins with a scale
// that is too large: ranks learn, and leave out the same steps, at the same scales, as one program that has two
// devices. Where there is a master copy it holds what the half type cannot.
func TestPrecisions(t *testing.T) {
	const steps = 24
	backend := devicetest.Open(t, 2)
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bf16", "fp16", "bf16-pure", "fp16-pure"} {
		policy, err := precision.ParsePolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		scaled := policy.Scaling != precision.Scaling{}
		if scaled {
			policy.Scaling.Initial = 1 << 22
		}
		recipe := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1), Precision: policy, Clip: 1}
		all := together(t, newEngine(t, backend, recipe, ddp.Options{}), 2, steps, toySource(4))
		run, err := ddp.NewSPMD(mesh, recipe)
		if err != nil {
			t.Fatal(err)
		}
		skipped := 0
		for step := range steps {
			inputs, targets := toy.Batch(step, 4)
			want, err := run.Step(inputs, targets)
			if err != nil {
				t.Fatal(err)
			}
			if want.Skipped {
				skipped++
			}
			if diff := all[0].losses[step]/want.Loss - 1; !(math.Abs(diff) < 0.01) {
				t.Errorf("%s, step %d: loss %v, in one program %v", name, step, all[0].losses[step], want.Loss)
			}
			for r := range all {
				if got := all[r].metrics[step]; got.Skipped != want.Skipped || got.Scale != want.Scale {
					t.Errorf("%s, step %d: rank %d has skipped %v at scale %v, one program %v at %v",
						name, step, r, got.Skipped, got.Scale, want.Skipped, want.Scale)
				}
			}
		}
		if scaled != (skipped > 0) || skipped > steps/2 {
			t.Errorf("%s: %d of %d steps were left out", name, skipped, steps)
		}
		if !learned(all[0].losses) {
			t.Errorf("%s: the losses %.4f", name, all[0].losses)
		}
		if finer := finerThan(t, policy.Compute, all[0].params); finer != policy.Mixed() {
			t.Errorf("%s: there are parameters that %s cannot hold: %v, want %v", name, policy.Compute, finer, policy.Mixed())
		}
	}
}

// finerThan says whether there is a parameter in float32 that is no number of a half type.
func finerThan(t *testing.T, half dtypes.DType, values params.Named[*tensors.Tensor]) bool {
	t.Helper()
	format, ok := precision.FormatOf(half)
	if !ok {
		t.Fatalf("%s has no format", half)
	}
	for _, v := range values {
		if v.DType() != dtypes.Float32 {
			continue
		}
		for _, x := range tensors.MustCopyFlatData[float32](v) {
			if format.Round(float64(x)) != float64(x) {
				return true
			}
		}
	}
	return false
}

// TestSumLoss trains on a loss that is a sum over the rows: with SumLoss gradients are added up, as one device has them.
// Without it they are a mean of sums: with a learning rate that is as many times larger the same.
func TestSumLoss(t *testing.T) {
	const world = 4
	backend := devicetest.Open(t, world)
	m := toy.Layers(2, false)
	m.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllSum(graph.Square(graph.Sub(y, targets)))
	}
	batches := toySource(2 * world)
	recipe := func(rate float64) train.Recipe { return train.Recipe{Model: m, Rule: optim.SGD(rate)} }
	want := alone(t, backend, recipe(0.01), 5, batches)
	for name, c := range map[string]struct {
		rate float64
		o    ddp.Options
	}{
		"sum":                    {0.01, ddp.Options{SumLoss: true}},
		"sum of micro-batches":   {0.01, ddp.Options{SumLoss: true, Accumulate: 2}},
		"each micro-batch":       {0.01, ddp.Options{SumLoss: true, Accumulate: 2, EachMicroBatch: true}},
		"servers":                {0.01, ddp.Options{SumLoss: true, Accumulate: 2, Sync: ddp.Server}},
		"the mistake, made good": {0.01 * world, ddp.Options{}},
	} {
		got := together(t, newEngine(t, backend, recipe(c.rate), c.o), world, 5, batches)[0]
		if ulps := apart(want.params, got.params); !(ulps <= 8) {
			t.Errorf("%s: %.1f units in the last place from one device", name, ulps)
		}
		if loss := got.losses[0] * world; c.o.SumLoss && math.Abs(loss/want.losses[0]-1) > 1e-5 { // of the ranks' sums the mean
			t.Errorf("%s: loss %v, want %v", name, loss, want.losses[0])
		}
	}
	mistake := together(t, newEngine(t, backend, recipe(0.01), ddp.Options{}), world, 5, batches)[0]
	if apart(want.params, mistake.params) < 1e3 {
		t.Error("a mean of sums is the sum")
	}
}

// TestLocalSGD holds local SGD against ranks that train by themselves and whose parameters are averaged by hand.
func TestLocalSGD(t *testing.T) {
	const world, every, rounds = 3, 2, 3
	backend := devicetest.Open(t, world)
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}
	got := together(t, newEngine(t, backend, recipe, ddp.Options{Every: every}), world, every*rounds, toySource(2*world))[0]

	state, err := toy.Model(false).Init()
	if err != nil {
		t.Fatal(err)
	}
	m := toy.Model(false)
	m.Initial = func() ([]*tensors.Tensor, error) { return clones(t, state), nil } // asked for by each rank that joins
	byItself := newEngine(t, backend, train.Recipe{Model: m, Rule: optim.SGD(0.1)}, ddp.Options{})
	for round := range rounds {
		var ranks [][]*tensors.Tensor
		for rank := range world {
			own := together(t, byItself, 1, every,
				func(step int) (inputs, targets *tensors.Tensor, err error) {
					inputs, targets = toy.Batch(every*round+step, 2*world)
					return rowsOf(inputs, 2*rank, 2), rowsOf(targets, 2*rank, 2), nil
				})[0]
			values, err := own.params.List(m.Params())
			if err != nil {
				t.Fatal(err)
			}
			ranks = append(ranks, values)
		}
		for i := range state {
			mean := tensors.MustCopyFlatData[float32](ranks[0][i])
			for _, rank := range ranks[1:] {
				for k, x := range tensors.MustCopyFlatData[float32](rank[i]) {
					mean[k] += x
				}
			}
			for k := range mean {
				mean[k] /= world
			}
			state[i] = tensors.FromFlatDataAndDimensions(mean, state[i].Shape().Dimensions...)
		}
	}
	want, err := params.Zip(toy.Model(false).Params(), state)
	if err != nil {
		t.Fatal(err)
	}
	if ulps := apart(want, got.params); !(ulps <= 2) { // a mean may be rounded otherwise
		t.Errorf("%.1f units in the last place from averages by hand", ulps)
	}
}

func clones(t *testing.T, of []*tensors.Tensor) (all []*tensors.Tensor) {
	for _, x := range of {
		c, err := x.LocalClone()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

func rowsOf(x *tensors.Tensor, first, rows int) *tensors.Tensor {
	each := x.Shape().Dim(1)
	return tensors.FromFlatDataAndDimensions(tensors.MustCopyFlatData[float32](x)[first*each:(first+rows)*each], rows, each)
}

// TestAsync trains without waiting: one rank is never stale and learns what it learns with all-reduces, bit for bit; several
// learn, too, and see each other's updates late.
func TestAsync(t *testing.T) {
	const steps = 30
	backend := devicetest.Open(t, 4)
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(1e-2)}
	e := newEngine(t, backend, recipe, ddp.Options{Sync: ddp.Async, BucketBytes: 160, Servers: 1})
	one := together(t, e, 1, steps, toySource(4))[0]
	plain := together(t, newEngine(t, backend, recipe, ddp.Options{}), 1, steps, toySource(4))[0]
	if name := differ(one.params, plain.params); name != "" || one.staleness != 0 {
		t.Errorf("one rank: %s differs, staleness %v", name, one.staleness)
	}

	const world = 4
	results := make([]result, world)
	e = newEngine(t, backend, recipe, ddp.Options{Sync: ddp.Async, BucketBytes: 160, Servers: 2})
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		results[g.Rank()], err = steady(ctx, group.Group(lonely{g}), rank, steps, toySource(4*world))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var stale float64
	for r := range results {
		stale += results[r].staleness
		if s := results[r].staleness; s < 0 || s > (world-1)*steps*steps || !learned(results[r].losses) {
			t.Errorf("rank %d: staleness %v, losses %v", r, s, results[r].losses)
		}
	}
	// All ranks begin with the same parameters: the first gradients of the second rank to push have missed one update, those of the
	// third two, and so on.
	if least := float64(world * (world - 1) / 2); stale < least-1e-9 {
		t.Errorf("staleness %v in all, want at least %v", stale, least)
	}
}

// lonely is a group whose ranks do not average losses.
type lonely struct{ group.Group }

func (lonely) Do(context.Context, group.Call) error { return nil }
