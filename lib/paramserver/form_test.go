package paramserver_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// TestForms trains with servers that wait: within rounding of one device with the full batches, with the same bits
// whatever the buckets and servers, also if the host cannot access the devices' memory.
func TestForms(t *testing.T) {
	const steps, staged = 6, 4
	backend := devicetest.Open(t, 8)
	for _, tied := range []bool{false, true} {
		recipe := train.Recipe{Model: toy.Layers(3, tied), Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}}
		for _, world := range []int{1, 3, 8} {
			want, metrics := traintest.Alone(t, backend, recipe, steps, toy.Batches(2*world))
			var first result
			for i, o := range []paramserver.Options{{}, {BucketBytes: 160}, {BucketBytes: 160, Servers: 1},
				{Recompute: true},
				staged: {BucketBytes: 160, Servers: 2}} {
				o.Servers = min(o.Servers, world)
				e := newEngine(t, backend, recipe, o)
				if i == staged {
					e.Stage()
				}
				got := together(t, e, world, steps, toy.Batches(2*world))[0]
				if i == 0 {
					first = got
				}
				if name := traintest.Differ(first.params, got.params); name != "" {
					t.Errorf("tied %v, %d ranks, %+v: %s has other bits", tied, world, o, name)
				}
				if off := traintest.Apart(t, want, got.params); !(off <= 64) {
					t.Errorf("tied %v, %d ranks, %+v: %g units from one device", tied, world, o, off)
				}
				for step, loss := range got.losses {
					if math.Abs(loss/metrics[step].Loss-1) > 1e-5 {
						t.Errorf("tied %v, %d ranks, %+v, step %d: loss %v, want %v", tied, world, o, step, loss,
							metrics[step].Loss)
					}
				}
			}
		}
	}
}

// TestRefused has options, recipes and batches that cannot be, with what the errors name.
func TestRefused(t *testing.T) {
	backend := devicetest.Open(t, 2)
	plain := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}
	clipped, scaled, picky, unlike := plain, plain, plain, plain
	clipped.Clip = 1
	scaled.Precision, _ = precision.ParsePolicy("fp16")
	picky.Model, unlike.Model = toy.Picky(), toy.Unlike()
	for name, c := range map[string]struct {
		r    train.Recipe
		o    paramserver.Options
		rows int
		want string
	}{
		"bucket":       {plain, paramserver.Options{BucketBytes: -1}, 4, "BucketBytes is -1"},
		"accumulate":   {plain, paramserver.Options{Accumulate: -2}, 4, "Accumulate is -2"},
		"servers":      {plain, paramserver.Options{Servers: -1}, 4, "Servers is -1"},
		"many servers": {plain, paramserver.Options{Servers: 3}, 4, "Servers is 3, more than the 2 ranks"},
		"clipping":     {clipped, paramserver.Options{}, 4, "cannot clip"},
		"scaling":      {scaled, paramserver.Options{}, 4, "scale losses"},
		"no model":     {train.Recipe{Optimizer: optim.SGD(1)}, paramserver.Options{}, 4, "no model"},
		"rows":         {plain, paramserver.Options{}, 3, "3 examples for 2 data-parallel devices"},
		"micro": {plain, paramserver.Options{Accumulate: 2}, 2,
			"2 examples for 2 data-parallel devices with 2 micro-batches"},
		"picky":  {picky, paramserver.Options{}, 4, "not this batch"},
		"unlike": {unlike, paramserver.Options{}, 4, "not one function"},
	} {
		e, err := paramserver.NewPrograms(backend, c.r, c.o)
		if err == nil {
			err = group.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
				rank, err := e.Join(ctx, g, g.Rank())
				if err != nil {
					return err
				}
				inputs, targets := toy.Batch(0, c.rows)
				if _, err = rank.Step(ctx, inputs, targets); err != nil {
					if _, e := rank.Params(ctx); e != nil && name != "unlike" {
						t.Errorf("%s: then %v", name, e)
					}
				}
				return err
			})
			e.Close()
		}
		must.Refuse(t, name, err, c.want)
	}
	if _, err := paramserver.NewPrograms(nil, plain, paramserver.Options{}); err == nil ||
		!strings.Contains(err.Error(), "xla.Open") {
		t.Errorf("no backend: %v", err)
	}
}

// TestAsync trains without waiting: one rank is never stale and learns what it learns where servers wait, bit for bit;
// several learn, too, and see each other's updates late.
func TestAsync(t *testing.T) {
	const steps = 30
	backend := devicetest.Open(t, 4)
	recipe := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
	e := newEngine(t, backend, recipe, paramserver.Options{Async: true, BucketBytes: 160, Servers: 1})
	one := together(t, e, 1, steps, toy.Batches(4))[0]
	plain := together(t, newEngine(t, backend, recipe, paramserver.Options{}), 1, steps, toy.Batches(4))[0]
	if name := traintest.Differ(one.params, plain.params); name != "" || one.staleness != 0 {
		t.Errorf("one rank: %s differs, staleness %v", name, one.staleness)
	}

	const world = 4
	results := make([]result, world)
	e = newEngine(t, backend, recipe, paramserver.Options{Async: true, BucketBytes: 160, Servers: 2})
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		results[g.Rank()], err = steady(ctx, group.Group(lonely{g}), rank, steps, toy.Batches(4*world))
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
	// All ranks begin with the same parameters: the first gradients of the second rank to push have missed one update,
	// those of the third two, and so on.
	if least := float64(world * (world - 1) / 2); stale < least-1e-9 {
		t.Errorf("staleness %v in all, want at least %v", stale, least)
	}
}

// lonely is a group whose ranks do not average losses.
type lonely struct{ group.Group }

func (lonely) Do(context.Context, group.Call) error { return nil }

// TestKinds trains in each precision, a model with buffers, and on a loss that is a sum over the examples: within
// rounding of one device.
func TestKinds(t *testing.T) {
	const world, steps = 3, 4
	backend := devicetest.Open(t, world)
	mixed, pure := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(1e-2)},
		train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(0.1)}
	mixed.Precision, _ = precision.ParsePolicy("bf16")
	mixed.Precision.Reduce = dtypes.BFloat16
	pure.Precision, _ = precision.ParsePolicy("bf16-pure")
	summed := toy.Layers(2, false)
	summed.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllSum(graph.Square(graph.Sub(y, targets)))
	}
	for name, c := range map[string]struct {
		recipe train.Recipe
		units  float64 // of float32, of which a bfloat16's last place has 2¹⁶
	}{"mixed": {mixed, 1 << 16}, "pure": {pure, 1 << 16},
		"buffers": {train.Recipe{Model: toy.Buffered(0.5), Optimizer: optim.AdamW(1e-2)}, 8},
		"sum":     {train.Recipe{Model: summed, Optimizer: optim.SGD(0.01)}, 8}} {
		want, metrics := traintest.Alone(t, backend, c.recipe, steps, toy.Batches(4*world))
		o := paramserver.Options{BucketBytes: 160, Accumulate: 2, Servers: 2, SumLoss: name == "sum"}
		got := together(t, newEngine(t, backend, c.recipe, o), world, steps, toy.Batches(4*world))[0]
		if off := traintest.Apart(t, want, got.params); !(off <= c.units) {
			t.Errorf("%s: %g units from one device", name, off)
		}
		// Of the ranks' sums, got has the mean.
		if loss := got.losses[0] * world; o.SumLoss && math.Abs(loss/metrics[0].Loss-1) > 1e-5 {
			t.Errorf("%s: loss %v, want %v", name, loss, metrics[0].Loss)
		}
	}
}
