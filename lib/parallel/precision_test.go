package parallel_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// joined has each rank of a plan, in this process, do something.
func joined(ctx context.Context, r train.Recipe, l parallel.Layout, do func(ctx context.Context, g group.Group,
	r train.Trainer) error) error {
	p, err := parallel.NewPlan(sharing(r, l, ""), l)
	if err != nil {
		return err
	}
	return group.Run(ctx, l.Ranks(), func(ctx context.Context, g group.Group) error {
		one, err := p.Join(ctx, g, devices(), g.Rank()*l.PerRank(), parallel.Options{})
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, g, one), one.Close())
	}, group.Timeout(10*time.Minute))
}

// TestPrecision trains with master copies in half types, and with dynamic loss scaling, which begins too high: all
// ranks leave the first step out, and go on with the same scale. A parameter may be off from one device's by its own
// last place where sums are rounded another way, and then learn something else; how far is a share of the largest
// parameter.
func TestPrecision(t *testing.T) {
	const rows, until = 8, 3
	for _, c := range []struct {
		policy string
		share  float64
		layout parallel.Layout
	}{
		{"bf16", 0.008, parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 3}},
		{"fp16", 0.002, parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 1}},
		{"bf16", 0.008, parallel.Layout{Ring: 2, RingRanks: true, Replicas: 2, ZeRO: 3}},
		{"fp16", 0.002, parallel.Layout{Ring: 2, RingRanks: true, Ulysses: 2, ZeRO: 1}},
	} {
		policy := must.Get(precision.ParsePolicy(c.policy))(t)
		overflows := c.policy == "fp16"
		if overflows {
			policy.Scaling.Initial, policy.Scaling.Backoff = 0x1p26, 0x1p-16
		}
		r := train.Recipe{Model: small(1), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Precision: policy}
		want, alone := traintest.Alone(t, devices(), r, until, texts(rows))
		l := c.layout
		var mu sync.Mutex
		got := traintest.Named{}
		if err := joined(t.Context(), r, l, func(ctx context.Context, g group.Group, one train.Trainer) error {
			for step := range until {
				inputs, targets := text(step, rows)
				m, err := one.Step(ctx, inputs, targets)
				if err != nil {
					return err
				}
				if skips := overflows && step == 0; m.Skipped != skips || alone[step].Skipped != skips ||
					m.Scale != alone[step].Scale {
					t.Errorf("%s, rank %d: step %d left out: %v, on one device: %v; the scale is %g, on one device %g",
						c.policy, g.Rank(), step, m.Skipped, alone[step].Skipped, m.Scale, alone[step].Scale)
				}
			}
			own, err := one.Params(ctx)
			mu.Lock()
			defer mu.Unlock()
			for name, v := range own {
				got[name] = v
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		off := traintest.Apart(t, got, want) * 0x1p-23
		t.Logf("%s: %g of the largest parameter from one device", c.policy, off)
		if !(off <= c.share) {
			t.Errorf("%s: %g of the largest parameter from one device, want at most %g", c.policy, off, c.share)
		}
	}
}

// TestRules trains a GPT with rules of each kind: such as work on each element alone, with all that a layout has, and
// such as sum over a parameter or keep numbers of its blocks, where its elements are dealt in one way only.
func TestRules(t *testing.T) {
	const rows, until = 8, 3
	for _, c := range []struct {
		rule   string
		lr     float64
		layout parallel.Layout
	}{
		{"lion", 1e-3, parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 3}},
		{"lion", 1e-3, parallel.Layout{Replicas: 2, Tensor: 2, ZeRO: 3, Prefetch: 1}},
		{"adafactor", 1e-2, parallel.Layout{Pipe: 2, Data: 2, ZeRO: 3}},
		{"adafactor", 1e-2, parallel.Layout{Pipe: 2, Data: 2, Tensor: 2}},
		{"lamb", 1e-2, parallel.Layout{Pipe: 2, Data: 2, ZeRO: 1}},
		{"lamb", 1e-2, parallel.Layout{Pipe: 2, Tensor: 2}},
		{"adam8bit", 1e-2, parallel.Layout{Pipe: 2, Data: 2, ZeRO: 2}},
	} {
		rule := must.Get(optim.Parse(c.rule, c.lr))(t)
		model := small(1)
		if c.rule == "adam8bit" {
			model.Width = 32 // large enough for blocks of 8-bit states
		}
		r := train.Recipe{Model: model, Optimizer: rule}
		_, want := traintest.Alone(t, devices(), r, until, texts(rows))
		run := start(t, r, c.layout)
		off := 0.0
		for i, m := range steps(t, run, until, texts(rows)) {
			off = max(off, math.Abs(m.Loss/want[i].Loss-1))
		}
		t.Logf("%s in %+v: %.2g", c.rule, c.layout, off)
		if !(off <= lossBound) {
			t.Errorf("%s in %+v: losses differ by %.2g from one device's, want at most %g", c.rule, c.layout, off,
				lossBound)
		}
	}
}

// TestRulesRefused has optimizers that cannot work on what devices have be errors of the plan, before anything runs.
func TestRulesRefused(t *testing.T) {
	both := parallel.Layout{Data: 2, Tensor: 2, ZeRO: 1}
	rounding := must.Get(precision.ParsePolicy("bf16-pure"))(t)
	rounding.StochasticUpdate = true
	const sums = "engine: the optimizer sums over the elements of tok (Float32)[11, 32], which both tensor parallelism " +
		"and ZeRO shard: choose one of the two, or an optimizer that does not"
	for name, c := range map[string]struct {
		recipe train.Recipe
		layout parallel.Layout
		want   string
	}{
		"adafactor": {train.Recipe{Optimizer: optim.Adafactor(1e-2)}, both,
			"the optimizer's tok.rows (Float32)[11] does not have the shape of"},
		"lamb": {train.Recipe{Optimizer: optim.LAMB(1e-2)}, both, sums},
		"lamb between ranks": {train.Recipe{Optimizer: optim.Scheduled(optim.LAMB(1e-2), optim.Warmup{Steps: 2})},
			parallel.Layout{Replicas: 2, Tensor: 2, ZeRO: 3}, sums},
		"lamb of some": {train.Recipe{Optimizer: optim.Grouped(optim.AdamW(1e-2),
			optim.Group{Has: optim.Named("tok"), Optimizer: optim.LAMB(1e-2)})}, both, sums},
		"adam8bit": {train.Recipe{Optimizer: optim.Adam8bit(1e-2)}, parallel.Layout{Tensor: 2},
			"the optimizer has states for blocks of"},
		"stochastic rounding": {train.Recipe{Optimizer: optim.SGD(1), Precision: rounding}, both,
			"stochastic rounding needs contiguous elements"},
	} {
		model := small(1)
		model.Width = 32 // large enough for blocks of 8-bit states
		c.recipe.Model = model
		_, err := parallel.NewPlan(sharing(c.recipe, c.layout, ""), c.layout)
		must.Refuse(t, name, err, c.want)
	}
}
