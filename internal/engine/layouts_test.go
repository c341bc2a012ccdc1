package engine_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"

	"github.com/gomlx/gomlx/core/tensors"
)

// TestVersions trains in asynchronous pipelines: with one micro-batch per step as one device does; with more, each rank
// stores as many versions of its parameters as the plan says, and the loss falls.
func TestVersions(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(3, false), Optimizer: optim.SGD(0.5)}
	for _, kind := range []string{"pipedream", "pipedream-vertical", "pipedream-2bw"} {
		l := layout{ranks: 3, devices: 1, micro: 6, pipe: 3, schedule: kind}
		spec := l.plan(t, r.Model.(chain.Model))
		spec.Recipe = r
		run := start(t, backend, spec)
		var losses []float64
		for i := range 4 {
			in, out := toy.Batch(i, 12)
			m, err := run.Step(context.Background(), in, out)
			check(t, err)
			losses = append(losses, m.Loss)
		}
		if run.Steps() != 4 || !(losses[3] < losses[0]) {
			t.Errorf("%s: %d steps, losses %v", kind, run.Steps(), losses)
		}
		check(t, run.Close())
	}
}

// TestApart has schedules that split backward passes, and one that does not, give the same bits where all are made in
// two parts.
func TestApart(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1)}
	var want traintest.Named
	for _, kind := range []string{"1f1b", "gpipe", "zb-h1", "zb-h2"} {
		l := layout{ranks: 2, devices: 1, micro: 4, pipe: 2, schedule: kind, apart: true}
		spec := l.plan(t, r.Model.(chain.Model))
		spec.Recipe = r
		run := start(t, backend, spec)
		for i := range 3 {
			in, out := toy.Batch(i, 8)
			_, err := run.Step(context.Background(), in, out)
			check(t, err)
		}
		got, err := run.Params(context.Background())
		check(t, err)
		check(t, run.Close())
		if want == nil {
			want = got
		}
		if name := traintest.Differ(want, got); name != "" {
			t.Errorf("%s: %s has other bits", kind, name)
		}
	}
}

// layout is one of the ways to train.
type layout struct {
	ranks, devices, micro int
	zero, ahead           int
	shard                 int // ranks that share the state, of several groups; 0 is all
	late                  bool
	staged                bool
	schedule              string // of a pipeline of ranks
	pipe, chunks          int
	recompute             string
	apart                 bool
	host                  bool // it updates
}

// layouts are the table of all tests here.
var layouts = []layout{
	{ranks: 1, devices: 1, micro: 1}, {ranks: 1, devices: 1, micro: 2},
	{ranks: 1, devices: 2, micro: 1}, {ranks: 1, devices: 2, micro: 2},
	{ranks: 1, devices: 2, micro: 1, zero: 1}, {ranks: 1, devices: 2, micro: 2, zero: 2},
	{ranks: 1, devices: 2, micro: 1, zero: 3, ahead: 1},
	{ranks: 2, devices: 1, micro: 1}, {ranks: 2, devices: 1, micro: 2, late: true}, {ranks: 2, devices: 1, micro: 1,
		staged: true},
	{ranks: 2, devices: 1, micro: 1, zero: 1}, {ranks: 2, devices: 1, micro: 2, zero: 2},
	{ranks: 2, devices: 1, micro: 2, zero: 3, ahead: 1},
	{ranks: 4, devices: 1, micro: 1, zero: 3, ahead: 1, shard: 2}, {ranks: 4, devices: 1, micro: 1, zero: 1, shard: 2,
		staged: true},
	{ranks: 2, devices: 2, micro: 1}, {ranks: 2, devices: 2, micro: 1, zero: 3}, {ranks: 2, devices: 2, micro: 2,
		zero: 1},
	{ranks: 1, devices: 1, micro: 2, recompute: "blocks"}, {ranks: 2, devices: 1, micro: 1, zero: 3,
		recompute: "blocks"},
	{ranks: 3, devices: 1, micro: 4, pipe: 3, schedule: "1f1b"}, {ranks: 3, devices: 1, micro: 4, pipe: 3,
		schedule: "gpipe", recompute: "stages"},
	{ranks: 3, devices: 1, micro: 4, pipe: 3, schedule: "zb-h1"}, {ranks: 6, devices: 1, micro: 2, pipe: 3,
		schedule: "1f1b", zero: 1},
	{ranks: 2, devices: 1, micro: 4, pipe: 2, schedule: "dualpipe"}, {ranks: 4, devices: 2, micro: 2, pipe: 2,
		schedule: "1f1b", zero: 3},
	{ranks: 2, devices: 2, micro: 2, pipe: 2, schedule: "zb-h1", zero: 2},
	{ranks: 4, devices: 1, micro: 4, pipe: 2, schedule: "1f1b", zero: 3, ahead: 1, staged: true},
	{ranks: 1, devices: 1, micro: 2, host: true, recompute: "blocks"}, {ranks: 2, devices: 1, micro: 1, host: true},
	{ranks: 2, devices: 1, micro: 1, zero: 1, host: true}, {ranks: 2, devices: 1, micro: 2, zero: 3, ahead: 1,
		host: true},
	{ranks: 4, devices: 1, micro: 2, zero: 2, shard: 2, staged: true, host: true},
	{ranks: 6, devices: 1, micro: 2, pipe: 3, schedule: "1f1b", zero: 1, host: true},
}

// factors is which techniques a layout has.
func (l layout) factors() []any {
	return []any{l.ranks > 1, l.devices > 1, l.micro > 1, l.zero, l.shard, l.late, l.staged, l.schedule, l.recompute,
		l.host}
}

func (l layout) plan(t *testing.T, m chain.Model) engine.Spec {
	p, members := engine.Serial(m, l.micro)
	spec := engine.Spec{Members: members}
	inside := train.Axis
	if l.devices > 1 {
		p.Inside(inside, l.devices)
		for u := range p.Units {
			p.Units[u].Reduce = append(p.Units[u].Reduce, inside)
		}
		spec.Mesh = []xla.MeshAxis{xla.Axis(inside, l.devices)}
	}
	if l.pipe > 1 {
		order, err := pipeline.NewSchedule(pipeline.Kind(l.schedule), l.pipe, l.micro, l.chunks)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := pipeline.Even(len(p.Blocks), len(order.Blocks))
		if err != nil {
			t.Fatal(err)
		}
		if p, err = pipeline.Spread(p, order, cut); err != nil {
			t.Fatal(err)
		}
	}
	switch l.recompute {
	case "blocks":
		p = recompute.Blocks(p)
	case "stages":
		p = recompute.Stages(p)
	}
	switch {
	case l.shard > 1:
		p = p.Replicate(l.shard, "shard").Replicate(l.ranks/l.shard, "replica")
	case l.ranks > max(1, l.pipe):
		p = p.Replicate(l.ranks/max(1, l.pipe), "replica")
	}
	axis := "replica"
	if l.devices > 1 {
		axis = inside
	} else if l.shard > 1 {
		axis = "shard"
	}
	if l.zero > 0 {
		p = zero.Shard(p, l.zero, l.ahead, l.ahead, axis)
	} else {
		p = ddp.Average(p, !l.late, false)
	}
	if l.host {
		p = offload.Updates(p, l.ahead)
	}
	spec.Plans = []*step.Plan{p}
	spec.Staged, spec.Apart = l.staged, l.apart
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestLayouts(t *testing.T) {
	backend := devicetest.Open(t, 8)
	const steps, rows = 3, 8
	folder, n := t.TempDir(), 0
	batches := func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, rows) }
	for _, r := range []train.Recipe{
		{Model: toy.Model(true), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}},
		{Model: toy.Layers(6, false), Optimizer: optim.AdamW(1e-2), Clip: 0.1},
		{Model: toy.Layers(3, false), Optimizer: optim.LAMB(1e-2)},
		{Model: toy.Buffered(2), Optimizer: optim.AdamW(1e-2), Clip: 0.1},
	} {
		want, metrics := traintest.Alone(t, backend, r, steps, batches)
		before := "" // the folder of the layout before
		for _, l := range systest.Pairwise(t, layouts, layout.factors) {
			if l.pipe > 1 && len(r.Model.(chain.Model).Blocks) < l.pipe {
				continue
			}
			n++
			t.Run(fmt.Sprintf("%T %+v", r.Optimizer, l), func(t *testing.T) {
				spec := l.plan(t, r.Model.(chain.Model))
				spec.Recipe = r
				ctx, dir := context.Background(), filepath.Join(folder, fmt.Sprint(n))
				run := start(t, backend, spec)
				for i := range steps {
					in, out := batches(i)
					if i == steps-1 {
						check(t, run.Save(ctx, dir, nil, 1))
						loss, err := run.Evaluate(ctx, in, out)
						check(t, err)
						if !near(loss, metrics[i].Loss) {
							t.Errorf("evaluated before step %d: loss %g, want %g", i, loss, metrics[i].Loss)
						}
					}
					m, err := run.Step(ctx, in, out)
					check(t, err)
					if !near(m.Loss, metrics[i].Loss) {
						t.Errorf("step %d: loss %g, want %g", i, m.Loss, metrics[i].Loss)
					}
					if d := m.GradNorm - metrics[i].GradNorm; !(math.Abs(d) <= 1e-4*metrics[i].GradNorm) {
						t.Errorf("step %d: norm %g, want %g", i, m.GradNorm, metrics[i].GradNorm)
					}
				}
				got, err := run.Params(ctx)
				check(t, err)
				if off := traintest.Apart(t, want, got); !(off <= 64) {
					t.Errorf("%g units apart", off)
				}
				check(t, run.Close())
				// a checkpoint of this layout, and one of the layout before
				for _, from := range []string{dir, before} {
					if from == "" {
						continue
					}
					again := start(t, backend, spec)
					check(t, again.Load(ctx, traintest.Last(t, from)))
					in, out := batches(again.Steps())
					_, err := again.Step(ctx, in, out)
					check(t, err)
					resumed, err := again.Params(ctx)
					check(t, err)
					if name := traintest.Differ(got, resumed); from == dir && name != "" {
						t.Errorf("%s has other bits where the run goes on from a checkpoint", name)
					}
					if off := traintest.Apart(t, want, resumed); !(off <= 64) {
						t.Errorf("from another layout's checkpoint %g units apart", off)
					}
					check(t, again.Close())
				}
				before = dir
			})
		}
	}
}

func start(t *testing.T, backend *xla.Backend, spec engine.Spec) train.Trainer {
	t.Helper()
	run, err := engine.Start(context.Background(), backend, spec)
	check(t, err)
	return run
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func near(a, b float64) bool { return math.Abs(a/b-1) < 1e-5 }
