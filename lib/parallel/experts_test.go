package parallel_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
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
		{Replicas: 2, Expert: 2, Pipe: 2},
		{Replicas: 2, Expert: 2, Pipe: 2, Schedule: pipeline.KindDualPipe, Microbatches: 4},
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
	factors := func(f form) []any {
		return []any{f.Replicas, f.Data, f.Expert, f.ZeRO, f.Pipe, f.Tensor, f.Ring, f.Ulysses, f.Schedule, f.router}
	}
	for _, f := range systest.Pairwise(t, forms, factors) {
		t.Run(fmt.Sprint(f.Layout, " ", f.router, f.capacity, f.clip), func(t *testing.T) {
			r := train.Recipe{Model: experts(f.router, f.capacity),
				Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
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

// TestExpertTraffic compares the bytes that ranks send to each other's experts with what follows from the routing: for
// each choice of an expert of another rank, a row there and back in each pass, and the numbers of rows.
func TestExpertTraffic(t *testing.T) {
	const ranks, rows = 4, 8
	c := experts(expert.Softmax, 0)
	r := train.Recipe{Model: c, Optimizer: optim.SGD(0.1)}
	x, y := text(0, rows)
	each := c.Experts.Experts / ranks
	want := make([]int64, ranks)
	for rank := range ranks { // of a step with a rank's part of the batch alone, loads say which experts it chose
		part := func(all *tensors.Tensor) *tensors.Tensor {
			flat := must.Get(tensors.CopyFlatData[int32](all))(t)
			n := len(flat) / ranks
			return tensors.FromFlatDataAndDimensions(flat[rank*n:(rank+1)*n], rows/ranks, c.Seq)
		}
		run := start(t, r, parallel.Layout{})
		must.Get(run.Step(t.Context(), part(x), part(y)))(t)
		for name, value := range paramsOf(t, run) {
			if !strings.HasSuffix(name, ".router.load") {
				continue
			}
			for e, load := range must.Get(tensors.CopyFlatData[float32](value))(t) {
				choices := float64(load) * float64(rows/ranks*c.Seq*c.Experts.PerToken) / float64(c.Experts.Experts)
				if n := int64(math.Round(choices)); math.Abs(choices-float64(n)) > 1e-3 {
					t.Errorf("%s of expert %d is %g choices", name, e, choices)
				} else if e/each != rank {
					row := n * int64(c.Width) * 4
					want[rank] += 2 * row   // to the experts, and gradients of what they computed
					want[e/each] += 2 * row // what they computed, and gradients of what they got
				}
			}
			want[rank] += int64(c.Experts.Experts-each) * 4 // how many rows come
		}
	}
	run := start(t, r, parallel.Layout{Replicas: ranks, Expert: ranks})
	must.Get(run.Step(t.Context(), x, y))(t)
	if got := must.Get(run.Traffic())(t)[parallel.Expert]; got != slices.Max(want) {
		t.Errorf("a rank sends %d bytes, and by the routing the ranks send %v", got, want)
	}
}
