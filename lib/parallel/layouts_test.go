package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// shape is how many devices share along each axis.
type shape struct{ data, pipe, tensor, seq int }

// shapesOf lists the shapes of a number of devices, with axes of 1, 2, 4 and 8.
func shapesOf(devices int) (all []shape) {
	sizes := []int{1, 2, 4, 8}
	for _, data := range sizes {
		for _, pipe := range sizes {
			for _, tensor := range sizes {
				for _, seq := range sizes {
					if data*pipe*tensor*seq == devices {
						all = append(all, shape{data, pipe, tensor, seq})
					}
				}
			}
		}
	}
	return all
}

// form is a layout that is trained in, and what else differs from run to run.
type form struct {
	parallel.Layout
	placement sequence.Placement
	layers    int
	clip      float64
	shared    bool // ranks share devices, which the host cannot access, as on a GPU
}

func (f form) String() string {
	l := f.Layout
	text := fmt.Sprintf("replicas=%d,data=%d,pipe=%d,tensor=%d,ring=%d,ulysses=%d,zero=%d", max(1, l.Replicas), l.Data,
		l.Pipe, l.Tensor, max(1, l.Ring), max(1, l.Ulysses), l.ZeRO)
	for _, part := range []struct {
		name string
		is   bool
	}{{string(f.placement), l.Ring > 1}, {"ring-ranks", l.RingRanks}, {"tensor-sequence", l.TensorSequence},
		{string(l.Schedule), l.Pipe > 1}, {"recompute", l.Recompute},
		{"partition", l.Partition}, {fmt.Sprintf("shards=%d", l.Shards), l.Shards > 0}, {fmt.Sprintf("offload=%+v",
			l.Offload), l.Offload != offload.Host{}},
		{"clip", f.clip > 0}, {"shared", f.shared}} {
		if part.is && part.name != "" {
			text += "," + part.name
		}
	}
	return text
}

// factors is which techniques a form has: of an axis, that there is one.
func (f form) factors() []any {
	l := f.Layout
	return []any{l.Replicas > 1, l.Data > 1, l.Pipe > 1, l.Tensor > 1, l.Ring > 1, l.Ulysses > 1, l.ZeRO, f.placement,
		l.TensorSequence, l.Schedule,
		l.Recompute, l.Partition, l.Shards, l.Offload, f.clip > 0, l.RingRanks, f.shared}
}

// formsOf makes the runs of all layouts of eight devices and all stages of ZeRO, and spreads over them what a layout
// may have besides: each schedule, both ways to share sequences, replicas in place of devices with other rows. Without
// devices that have other rows or tokens ZeRO does nothing, and one stage stands for all.
func formsOf() (all []form) {
	kinds := map[int][]pipeline.Kind{
		1: {pipeline.Kind1F1B},
		2: {pipeline.Kind1F1B, pipeline.KindZBH1, pipeline.KindGPipe, pipeline.KindZBV, pipeline.KindInterleaved,
			pipeline.KindDualPipe, pipeline.KindZBH2},
		4: {pipeline.KindZBH1, pipeline.Kind1F1B, pipeline.KindGPipe, pipeline.KindNaive},
		8: {pipeline.Kind1F1B},
	}
	placements := []sequence.Placement{sequence.Contiguous, sequence.Striped, sequence.Zigzag}
	of := map[int]int{} // so far, by pipe
	for i, s := range shapesOf(deviceCount) {
		for zero := range 4 {
			if s.data*s.seq == 1 && zero > 0 {
				continue
			}
			k := i + zero
			f := form{layers: s.pipe, Layout: parallel.Layout{Pipe: s.pipe, Data: s.data, Tensor: s.tensor, ZeRO: zero}}
			f.Schedule = kinds[s.pipe][of[s.pipe]%len(kinds[s.pipe])]
			of[s.pipe]++
			switch f.Schedule {
			case pipeline.KindInterleaved:
				f.layers = 2 * s.pipe
			case pipeline.KindDualPipe:
				f.Microbatches = 2 * s.pipe
			}
			if k%2 == 0 {
				f.clip = 0.5
			}
			if k%2 == 0 && s.pipe < 4 { // rings take the compiler longest
				f.Ring, f.placement = s.seq, placements[i%3]
			} else {
				f.Ulysses = s.seq
			}
			f.TensorSequence = s.tensor > 1 && k%3 == 0
			f.Recompute = k%4 == 1
			f.shared = k%5 == 3
			if zero == 0 && s.data > 1 && i%2 == 0 {
				f.Replicas, f.Data = 2, s.data/2
			}
			all = append(all, f)
		}
	}
	for _, l := range []parallel.Layout{
		{Data: 2, Tensor: 4, Partition: true, ZeRO: 2}, {Pipe: 2, Tensor: 2, Data: 2, Partition: true,
			Schedule: pipeline.KindZBH1},
		{Replicas: 4, ZeRO: 3, Shards: 2}, {Replicas: 4, ZeRO: 1, Shards: 2, Offload: offload.Host{Update: true}},
		{Replicas: 2, Pipe: 2, Offload: offload.Host{Update: true, Activations: true, Prefetch: 1}},
		{Replicas: 2, Data: 2, Offload: offload.Host{Optimizer: true, Activations: true, Prefetch: 1}},
	} {
		all = append(all, form{layers: 2, Layout: l})
	}
	for i, l := range []parallel.Layout{ // rings of ranks
		{Ring: 4, ZeRO: 3, Prefetch: 1}, {Ring: 2, Ulysses: 2, Replicas: 2}, {Ring: 2, Pipe: 2, Tensor: 2,
			TensorSequence: true},
		{Ring: 2, Ulysses: 2, Data: 2, ZeRO: 2, Microbatches: 2}, {Ring: 4, Pipe: 2, Schedule: pipeline.KindZBH1,
			Recompute: true},
		{Ring: 2, Tensor: 2, Partition: true, Replicas: 2}, {Ring: 2, ZeRO: 1, Offload: offload.Host{Update: true,
			Activations: true}},
	} {
		l.RingRanks = true
		all = append(all, form{layers: 2, Layout: l, placement: placements[i%3], shared: i%3 == 0})
	}
	return all
}

// setup is a model as memest takes it.
func setup(c gpt.Config) memest.Setup { return memest.Setup{Model: cost.FromGPT(c), Flash: c.Flash} }

const (
	layoutRows  = 16
	layoutSteps = 10
	// lossBound is by how much of it a loss may differ from one device's: sums are made in another order, and attention
	// goes block by block where devices share sequences.
	lossBound = 1e-5
)

// TestLayouts trains in every layout of eight devices, of axes of 1, 2, 4 and 8 devices and with every stage of ZeRO:
// the same losses as one device.
func TestLayouts(t *testing.T) {
	type baseline struct {
		layers int
		clip   float64
	}
	alone := map[baseline][]train.Metrics{}
	worst, forms := 0.0, formsOf()
	// of the 20 layouts 16 have devices with other rows or tokens; and 13 that are written out
	if n := len(forms); n != 4+4*16+6+7 {
		t.Errorf("%d runs", n)
	}
	for _, f := range systest.Pairwise(t, forms, form.factors) {
		t.Run(f.String(), func(t *testing.T) {
			c := small(f.layers)
			must.Get(f.Estimate(setup(c), layoutRows))(t)
			// which does not forgive a wrong scale
			r := train.Recipe{Model: c, Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
			if f.clip > 0 {
				r.Optimizer, r.Clip = optim.AdamW(1e-2), f.clip
			}
			of := baseline{f.layers, f.clip}
			if alone[of] == nil {
				_, alone[of] = traintest.Alone(t, devices(), r, layoutSteps, texts(layoutRows))
			}
			want := alone[of]
			on := devices()
			if f.shared {
				on = devicetest.OpenShared(t, f.Devices(), f.Devices()/f.Ranks())
			}
			run := must.Get(parallel.New(context.Background(), on, sharing(r, f.Layout, f.placement), f.Layout,
				parallel.Options{Staged: f.shared}))(t)
			off := 0.0
			for i, m := range steps(t, run, layoutSteps, texts(layoutRows)) {
				off = max(off, math.Abs(m.Loss/want[i].Loss-1))
				if d := math.Abs(m.GradNorm - want[i].GradNorm); !(d <= 1e-5*want[i].GradNorm) {
					t.Errorf("step %d: the norm of the gradients is %g, want %g", i, m.GradNorm, want[i].GradNorm)
				}
			}
			if !(off <= lossBound) {
				t.Errorf("losses differ by %.2g from one device's, want at most %g", off, lossBound)
			}
			worst = max(worst, off)
			if f.RingRanks { // whose forward passes are other programs without backward passes
				inputs, targets := texts(layoutRows)(layoutSteps)
				loss, err := run.Evaluate(t.Context(), inputs, targets)
				m, other := run.Step(t.Context(), inputs, targets)
				if err := errors.Join(err, other); err != nil || !(math.Abs(loss/m.Loss-1) <= lossBound) {
					t.Errorf("the loss is %g, and of a step %g: %v", loss, m.Loss, err)
				}
			}
			if err := run.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Logf("the largest error of losses is %.2g", worst)
}

// TestOwnSchedule trains by a schedule that is none of the named ones, which says how many ranks and micro-batches
// there are.
func TestOwnSchedule(t *testing.T) {
	// the first stage recomputes its second micro-batch
	own, err := step.Parse("schedule mine\nrank 0: 0F0 0F1 0B0 0R1 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1")
	must.Do(t, err)
	const rows, until = 8, 2
	r, l := train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(0.5)}, parallel.Layout{Plan: own, Data: 2,
		ZeRO: 1}
	if l.Ranks() != 2 || l.Devices() != 4 {
		t.Errorf("%d ranks, %d devices", l.Ranks(), l.Devices())
	}
	want, _ := traintest.Alone(t, devices(), r, until, toy.Batches(rows))
	run := start(t, r, l)
	steps(t, run, until, toy.Batches(rows))
	near(t, "a schedule of one's own", paramsOf(t, run), want, unitBound)
	if p := run.Plan(); p.Name != "mine" || !slices.ContainsFunc(p.Ranks[0],
		func(op step.Op) bool { return op.Kind == step.Recompute }) {
		t.Errorf("the plan is\n%s", p)
	}
	_, err = parallel.NewPlan(r, parallel.Layout{Plan: offload.Inputs(own, 0)})
	must.Refuse(t, "a schedule with more than passes", err, "give it passes, updates and messages only")
	stuck := own.Clone()
	slices.Reverse(stuck.Ranks[0])
	must.Refuse(t, "a schedule that cannot be", parallel.Layout{Plan: stuck}.Validate(), "rank 0")
}

// TestAsynchronous trains by a schedule that updates while micro-batches are under way: the bits are those of
// lib/pipeline, which is compared with the papers' formulas. What waits for all ranks is refused.
func TestAsynchronous(t *testing.T) {
	const rows, until = 8, 3
	order, err := pipeline.PipeDream(2, 2, false)
	must.Do(t, err)
	r := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.5)}
	l := parallel.Layout{Replicas: 2, Plan: order}
	for _, apart := range []bool{false, true} {
		ours := must.Get(parallel.New(t.Context(), devices(), r, l, parallel.Options{Apart: apart}))(t)
		theirs := must.Get(pipeline.New(t.Context(), devices(), r,
			pipeline.Options{Schedule: order, Replicas: 2, Fused: !apart}))(t)
		steps(t, ours, until, toy.Batches(rows))
		steps(t, theirs, until, toy.Batches(rows))
		near(t, "an asynchronous schedule", paramsOf(t, ours), paramsOf(t, theirs), 0)
		plan := must.Get(parallel.NewPlan(r, l))(t)
		most := int64(0) // older versions of weights among it
		for rank := range 4 {
			own := must.Get(plan.Bytes(rank))(t)
			most = max(most, own[memest.Parameters])
		}
		if got := ours.Memory()[memest.Parameters]; got != most {
			t.Errorf("a device has held %d bytes of parameters, by the plan %d", got, most)
		}
		if err := errors.Join(ours.Close(), theirs.Close()); err != nil {
			t.Error(err)
		}
	}
	r.Clip = 1
	_, err = parallel.NewPlan(r, l)
	must.Refuse(t, "clipping", err, "the schedule pipedream updates between micro-batches, but Recipe.Clip")
	l.Data = 2
	must.Refuse(t, "several devices", l.Validate(), "updates while micro-batches are under way")
}

// TestLink has what goes between ranks take as long as over a slow link, and come to the same bits.
func TestLink(t *testing.T) {
	r, l := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.5)}, parallel.Layout{Replicas: 2}
	var all [2]traintest.Named
	for i, latency := range []time.Duration{0, 20 * time.Millisecond} {
		run := must.Get(parallel.New(t.Context(), devices(), r, l,
			parallel.Options{Link: group.Link{Latency: latency}}))(t)
		began := time.Now()
		steps(t, run, 1, toy.Batches(8))
		if took := time.Since(began); took < latency {
			t.Errorf("a step took %v over a link of %v", took, latency)
		}
		all[i] = paramsOf(t, run)
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	near(t, "a slow link", all[1], all[0], 0)
}
