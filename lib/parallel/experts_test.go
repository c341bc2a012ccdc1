package parallel_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
)

// experts is the small model with experts, which all devices can share.
func experts(router expert.Router, capacity float64) gpt.Config {
	c := small(2)
	c.Gated, c.Activation, c.SharedExperts = true, "", 1
	c.Experts = expert.Config{Experts: 8, PerToken: 2, Hidden: 8, Router: router, Normalize: true, Balance: 0.1,
		ZLoss: 0.01, Capacity: capacity}
	if router == expert.Sigmoid {
		c.Experts.BiasRate, c.DenseLayers = 0.05, 1
	}
	return c
}

// TestExperts compares layouts of a model with experts with one device: losses, norms, parameters and loads.
func TestExperts(t *testing.T) {
	type form struct {
		parallel.Layout
		router   expert.Router
		capacity float64
		clip     float64
	}
	var forms []form
	for i, l := range []parallel.Layout{
		{Data: 2}, {Data: 4, ZeRO: 2}, {Replicas: 2, ZeRO: 3}, {Pipe: 2, Data: 2},
		{Data: 2, Expert: 2}, {Data: 4, Expert: 2}, {Data: 4, Expert: 4, ZeRO: 1}, {Data: 8, Expert: 8, ZeRO: 3},
		{Data: 8, Expert: 2, ZeRO: 2}, {Data: 4, Expert: 2, ZeRO: 3, Pipe: 2}, {Data: 2, Expert: 2, Tensor: 2},
		{Data: 2, Expert: 2, Tensor: 4, TensorSequence: true, ZeRO: 2}, {Tensor: 4}, {Tensor: 8, TensorSequence: true},
		{Data: 2, Expert: 2, Ring: 2}, {Data: 2, Expert: 2, Ulysses: 2, Tensor: 2, ZeRO: 1},
		{Replicas: 2, Data: 4, Expert: 2, ZeRO: 1},
		{Replicas: 2, Expert: 2}, {Replicas: 4, Expert: 2}, {Replicas: 4, Expert: 2, ZeRO: 1},
		{Replicas: 8, Expert: 4, ZeRO: 3}, {Replicas: 4, Expert: 4, ZeRO: 2},
		{Replicas: 2, Expert: 2, Pipe: 2}, {Replicas: 2, Expert: 2, Pipe: 2, Schedule: pipeline.KindDualPipe, Microbatches: 4},
		{Replicas: 4, Expert: 2, Pipe: 2, Schedule: pipeline.KindZBH1, ZeRO: 1},
	} {
		f := form{Layout: l, router: []expert.Router{expert.Softmax, expert.Sigmoid}[i%2]}
		if i%3 == 1 && l.Ring+l.Ulysses == 0 {
			f.capacity = 1
		}
		if i%2 == 0 {
			f.clip = 0.5
		}
		forms = append(forms, f)
	}
	alone := map[string][]train.Metrics{}
	for _, f := range forms {
		t.Run(fmt.Sprint(f.Layout, " ", f.router, f.capacity, f.clip), func(t *testing.T) {
			r := train.Recipe{Model: experts(f.router, f.capacity), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
			if f.clip > 0 {
				r.Optimizer, r.Clip = optim.AdamW(1e-2), f.clip
			}
			of := fmt.Sprint(f.router, f.capacity, f.clip)
			if alone[of] == nil {
				_, alone[of] = traintest.Alone(t, devices(), r, layoutSteps, texts(layoutRows))
			}
			want := alone[of]
			run := start(t, r, f.Layout)
			for i, m := range steps(t, run, layoutSteps, texts(layoutRows)) {
				if d := math.Abs(m.Loss/want[i].Loss - 1); !(d <= lossBound) {
					t.Errorf("step %d: the loss is %g, want %g: off by %.2g", i, m.Loss, want[i].Loss, d)
				}
				if d := math.Abs(m.GradNorm - want[i].GradNorm); !(d <= 1e-5*want[i].GradNorm) {
					t.Errorf("step %d: the norm of the gradients is %g, want %g", i, m.GradNorm, want[i].GradNorm)
				}
			}
			must.Do(t, run.Close())
		})
	}
}
