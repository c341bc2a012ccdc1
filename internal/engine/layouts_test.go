package engine_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// layout is one of the ways to train.
type layout struct {
	ranks, devices, micro int // devices of each rank; 0 is one
	zero, ahead           int
	shard                 int // ranks that share the state, of several groups; 0 is all
	late                  bool
	staged                bool
	schedule              string // of a pipeline of ranks
	pipe                  int
	recompute             string
	host                  string // what is there: "updates", "states", or "all": states and inputs
}

// layouts are the table of all tests here.
var layouts = []layout{
	{ranks: 1, micro: 1}, {ranks: 1, micro: 2}, {ranks: 1, devices: 2, micro: 1}, {ranks: 1, devices: 2, micro: 2},
	{ranks: 1, devices: 2, micro: 1, zero: 1}, {ranks: 1, devices: 2, micro: 2, zero: 2},
	{ranks: 1, devices: 2, micro: 1, zero: 3, ahead: 1}, {ranks: 2, micro: 1}, {ranks: 2, micro: 2, late: true},
	{ranks: 2, micro: 1, staged: true}, {ranks: 2, micro: 1, zero: 1}, {ranks: 2, micro: 2, zero: 2},
	{ranks: 2, micro: 2, zero: 3, ahead: 1}, {ranks: 4, micro: 1, zero: 3, ahead: 1, shard: 2},
	{ranks: 4, micro: 1, zero: 1, shard: 2, staged: true}, {ranks: 2, devices: 2, micro: 1},
	{ranks: 2, devices: 2, micro: 1, zero: 3}, {ranks: 2, devices: 2, micro: 2, zero: 1},
	{ranks: 1, micro: 2, recompute: "blocks"}, {ranks: 2, micro: 1, zero: 3, recompute: "blocks"},
	{ranks: 3, micro: 4, pipe: 3, schedule: "1f1b"},
	{ranks: 3, micro: 4, pipe: 3, schedule: "gpipe", recompute: "stages"},
	{ranks: 3, micro: 4, pipe: 3, schedule: "zb-h1"}, {ranks: 6, micro: 2, pipe: 3, schedule: "1f1b", zero: 1},
	{ranks: 2, micro: 4, pipe: 2, schedule: "dualpipe"},
	{ranks: 4, devices: 2, micro: 2, pipe: 2, schedule: "1f1b", zero: 3},
	{ranks: 2, devices: 2, micro: 2, pipe: 2, schedule: "zb-h1", zero: 2},
	{ranks: 4, micro: 4, pipe: 2, schedule: "1f1b", zero: 3, ahead: 1, staged: true},
	{ranks: 1, micro: 2, host: "updates", recompute: "blocks"}, {ranks: 2, micro: 1, host: "updates"},
	{ranks: 2, micro: 1, zero: 1, host: "updates"}, {ranks: 2, micro: 2, zero: 3, ahead: 1, host: "updates"},
	{ranks: 4, micro: 2, zero: 2, shard: 2, staged: true, host: "updates"},
	{ranks: 6, micro: 2, pipe: 3, schedule: "1f1b", zero: 1, host: "updates"},
	{ranks: 1, micro: 2, host: "states", recompute: "blocks"},
	{ranks: 2, micro: 1, host: "all", recompute: "blocks", ahead: 1},
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
		order := must.Get(pipeline.NewSchedule(pipeline.Kind(l.schedule), l.pipe, l.micro, 0))(t)
		cut := must.Get(pipeline.Even(len(p.Blocks), len(order.Blocks)))(t)
		p = must.Get(pipeline.Spread(p, order, cut))(t)
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
	switch l.host {
	case "updates":
		p = offload.Updates(p, l.ahead)
	case "states":
		p = offload.States(p, l.ahead)
	case "all":
		p = offload.Inputs(offload.States(p, l.ahead), l.ahead)
	}
	spec.Plans = []*step.Plan{p}
	spec.Staged = l.staged
	must.Do(t, p.Check())
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
			if l.pipe > 1 && len(r.Model.(chain.Model).Blocks) < l.pipe ||
				r.Clip > 0 && (l.host == "states" || l.host == "all") { // which update before all gradients are there
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
						must.Do(t, run.Save(ctx, dir, nil, 1))
						loss := must.Get(run.Evaluate(ctx, in, out))(t)
						if !near(loss, metrics[i].Loss) {
							t.Errorf("evaluated before step %d: loss %g, want %g", i, loss, metrics[i].Loss)
						}
					}
					m := must.Get(run.Step(ctx, in, out))(t)
					if !near(m.Loss, metrics[i].Loss) {
						t.Errorf("step %d: loss %g, want %g", i, m.Loss, metrics[i].Loss)
					}
					if d := m.GradNorm - metrics[i].GradNorm; !(math.Abs(d) <= 1e-4*metrics[i].GradNorm) {
						t.Errorf("step %d: norm %g, want %g", i, m.GradNorm, metrics[i].GradNorm)
					}
				}
				got := must.Get(run.Params(ctx))(t)
				if off := traintest.Apart(t, want, got); !(off <= 64) {
					t.Errorf("%g units apart", off)
				}
				tree := r.Model.Params()
				names := []string{tree[n%len(tree)].Name, tree[(n+3)%len(tree)].Name, "nothing"}
				some := must.Get(run.Params(ctx, names...))(t)
				if len(some) != 2 || traintest.Differ(some, params.Named[*tensors.Tensor]{names[0]: got[names[0]],
					names[1]: got[names[1]]}) != "" {
					t.Errorf("of %q there are %v", names, some)
				}
				must.Do(t, run.Close())
				// a checkpoint of this layout, and one of the layout before
				for _, from := range []string{dir, before} {
					if from == "" {
						continue
					}
					again := start(t, backend, spec)
					must.Do(t, again.Load(ctx, traintest.Last(t, from)))
					in, out := batches(again.Steps())
					_, err := again.Step(ctx, in, out)
					must.Do(t, err)
					resumed := must.Get(again.Params(ctx))(t)
					if name := traintest.Differ(got, resumed); from == dir && name != "" {
						t.Errorf("%s has other bits where the run goes on from a checkpoint", name)
					}
					if off := traintest.Apart(t, want, resumed); !(off <= 64) {
						t.Errorf("from another layout's checkpoint %g units apart", off)
					}
					must.Do(t, again.Close())
				}
				before = dir
			})
		}
	}
}

func start(t *testing.T, backend *xla.Backend, spec engine.Spec) train.Trainer {
	t.Helper()
	run := must.Get(engine.Start(context.Background(), backend, spec))(t)
	return run
}

func near(a, b float64) bool { return math.Abs(a/b-1) < 1e-5 }

// replicas is the plan of some ranks that have all parameters, and nothing that they do together yet.
func replicas(m chain.Model, ranks, micro int) (*step.Plan, [][]int) {
	p, members := engine.Serial(m, micro)
	return p.Replicate(ranks, "replica"), members
}

// learn trains for some steps, and returns the parameters.
func learn(t *testing.T, spec engine.Spec, steps, rows int) traintest.Named {
	t.Helper()
	run := start(t, devicetest.Open(t, 8), spec)
	for i := range steps {
		in, out := toy.Batch(i, rows)
		_, err := run.Step(context.Background(), in, out)
		must.Do(t, err)
	}
	got := must.Get(run.Params(context.Background()))(t)
	must.Do(t, run.Close())
	return got
}

// TestLocalSGD compares ranks that average their states at each third step with runs of one device that know nothing of
// each other, whose states are averaged on the host.
func TestLocalSGD(t *testing.T) {
	const ranks, every, steps = 2, 3, 6
	r := train.Recipe{Model: toy.Layers(3, false), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
	m := r.Model.(chain.Model)
	p, members := replicas(m, ranks, 1)
	plans := ddp.Local(p, every, "replica")
	for _, p := range plans {
		must.Do(t, p.Check())
	}
	got := learn(t, engine.Spec{Recipe: r, Plans: plans, Members: members}, steps, 4*ranks)

	backend := devicetest.Open(t, 8)
	var alone []*train.Run
	for range ranks {
		alone = append(alone, traintest.One(t, backend, r))
	}
	want := traintest.Named{}
	for i := range steps {
		in, out := toy.Batch(i, 4*ranks)
		for k, one := range alone {
			_, err := one.Step(rows(in, k, ranks), rows(out, k, ranks))
			must.Do(t, err)
		}
		if (i+1)%every != 0 {
			continue
		}
		var states [][]*tensors.Tensor
		for _, one := range alone {
			s := must.Get(one.State(0))(t)
			states = append(states, s)
		}
		for e, s := range r.State() {
			if s.Shape.DType.IsFloat() {
				mean(t, states[0][e], states[1][e])
			}
		}
		for k, s := range m.Params() {
			want[s.Name] = states[0][k]
		}
		dir := t.TempDir()
		_, err := r.Save(context.Background(), dir, states[0], nil, 0)
		must.Do(t, err)
		for _, one := range alone {
			must.Do(t, one.Load(context.Background(), traintest.Last(t, dir)))
		}
	}
	if off := traintest.Apart(t, want, got); !(off <= 16) {
		t.Errorf("%g units apart", off)
	}
}

// rows is a rank's shard of a batch.
func rows(t *tensors.Tensor, rank, ranks int) *tensors.Tensor {
	flat := tensors.MustCopyFlatData[float32](t)
	n := len(flat) / ranks
	return tensors.FromFlatDataAndDimensions(flat[rank*n:(rank+1)*n], t.Shape().Dim(0)/ranks, t.Shape().Dim(1))
}

// mean makes a the mean of a and b.
func mean(t *testing.T, a, b *tensors.Tensor) {
	t.Helper()
	other := tensors.MustCopyFlatData[float32](b)
	must.Do(t, tensors.MutableFlatData(a, func(flat []float32) {
		for i := range flat {
			flat[i] = (flat[i] + other[i]) / 2
		}
	}))
}

// TestPredicted compares the bytes that ranks of one device send and hold with the predictions of their plans.
func TestPredicted(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(6, false), Optimizer: optim.AdamW(1e-2)}
	m := r.Model.(chain.Model)
	// of a batch, of a layer, of an input, bytes of a float32, of a parameter that is not used
	const rows, width, inputs, number, idle = 8, 6, 4, 4, 20
	for _, l := range layouts {
		if l.devices > 1 {
			continue
		}
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			spec := l.plan(t, m)
			spec.Recipe = r
			p := spec.Plans[0]
			s := step.Sizes{}
			for u, unit := range p.Units {
				shards, n := 1, 0
				if unit.Shard != "" {
					a, _ := p.Axis(unit.Shard)
					shards = a.Size
				}
				for _, at := range spec.Members[u] {
					n += (m.Params()[at].Size() + shards - 1) / shards * shards
				}
				full := int64(number * n)
				s.Full, s.Sum = append(s.Full, full), append(s.Sum, full)
				s.Reduced, s.Resident = append(s.Reduced, full/int64(shards)), append(s.Resident, full/int64(shards))
				s.States = append(s.States, 2*full/int64(shards))
			}
			if l.zero == 0 && l.host != "updates" { // the loss does not depend on all of the first block
				s.Sum[0] -= idle
				s.Reduced[0] -= idle
			}
			copies := max(1, l.ranks/max(1, l.pipe))
			s.Input = slices.Repeat([]int64{int64(number * width * rows / l.micro / copies)}, len(p.Blocks))
			s.Input[0] = s.Input[0] / width * inputs
			sent := must.Get(p.Traffic(s))(t)
			held := must.Get(p.Memory(s))(t)
			run := start(t, backend, spec)
			in, out := toy.Batch(0, rows)
			must.Get(run.Step(context.Background(), in, out))(t)
			got := must.Get(run.Traffic())(t)
			want, most := map[string]int64{}, step.Bytes{} // of the rank that has most
			for i := range sent {
				for axis, n := range sent[i] {
					want[axis] = max(want[axis], n)
				}
				peak := held[i].Peak
				most.Parameters, most.Gathered = max(most.Parameters, peak.Parameters),
					max(most.Gathered, peak.Gathered)
				most.States = max(most.States, peak.States)
				most.Gradients = max(most.Gradients, peak.Gradients)
			}
			if !maps.Equal(got, want) {
				t.Errorf("%v bytes are sent, the plan says %v", got, want)
			}
			for kind, n := range map[memest.Kind]int64{memest.Optimizer: most.States,
				memest.Parameters: most.Parameters} {
				if l.zero > 0 && l.zero < 3 && kind == memest.Parameters {
					n = most.Gathered // what lies there between steps
				}
				if got := run.Memory()[kind]; got != n {
					t.Errorf("%s: %d bytes are held, the plan says %d", kind, got, n)
				}
			}
			// A rank alone has gradients inside of its one program, and what is staged is there twice for a while.
			if got := run.Memory()[memest.Gradients]; got != most.Gradients && l.ranks > 1 && !l.staged {
				t.Errorf("gradients: %d bytes are held, the plan says %d", got, most.Gradients)
			}
			if got := run.Memory()[memest.Communication]; l.zero == 3 && got != most.Gathered {
				t.Errorf("%d bytes of gathered parameters, the plan says %d", got, most.Gathered)
			}
			must.Do(t, run.Close())
		})
	}
}

// TestRefused has what the engine cannot play, with what its errors name.
func TestRefused(t *testing.T) {
	m := toy.Layers(3, false)
	spec := func(change func(p *step.Plan)) engine.Spec {
		p, members := replicas(m, 2, 1)
		p.Inside(train.Axis, 2)
		for u := range p.Units {
			p.Units[u].Reduce = []string{train.Axis, "replica"}
		}
		change(p)
		return engine.Spec{Recipe: train.Recipe{Model: m, Optimizer: optim.SGD(1)},
			Plans:   []*step.Plan{ddp.Average(p, true, false)},
			Members: members}
	}
	must.Do(t, engine.Check(spec(func(*step.Plan) {})))
	for name, c := range map[string]struct {
		spec engine.Spec
		says string
	}{
		"no plan": {engine.Spec{Recipe: train.Recipe{Model: m}}, "has no plans"},
		"order": {spec(func(p *step.Plan) { p.Units[1].Reduce = []string{"replica", train.Axis} }),
			`"replica", between ranks, before`},
		"no axis": {spec(func(p *step.Plan) { p.Units[0].Shard = "nowhere" }), `"nowhere"`},
	} {
		if err := engine.Check(c.spec); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
}

// TestFaults makes a rank fail, panic, stall or be cancelled before a step, and in its first, middle and last call of a
// group, in layouts with every kind of operation between ranks. All other ranks get an error that names it, later calls
// say what to do, and nothing is left on the devices.
func TestFaults(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(3, true), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Clip: 1}
	for k, l := range []layout{
		{ranks: 3, micro: 1, zero: 3, ahead: 1}, {ranks: 3, micro: 2, zero: 1},
		{ranks: 3, micro: 3, pipe: 3, schedule: "1f1b"}, {ranks: 3, devices: 2, micro: 1},
		{ranks: 3, micro: 1, zero: 2, host: "updates"},
	} {
		spec := l.plan(t, r.Model.(chain.Model))
		spec.Recipe = r
		programs := must.Get(engine.New(backend, spec))(t)
		ranks := traintest.Ranks[*engine.Rank]{Size: l.ranks, Folder: t.TempDir(),
			Batches: func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, 12) },
			Join: func(ctx context.Context, g group.Group) (*engine.Rank, error) {
				return programs.Join(ctx, g, g.Rank()*max(1, l.devices))
			},
			Ask: func(r *engine.Rank) map[string]error {
				ctx := context.Background()
				_, params := r.Params(ctx)
				_, traffic := r.Traffic()
				in, out := toy.Batch(0, 12)
				_, loss := r.Evaluate(ctx, in, out)
				return map[string]error{"Params": params, "Traffic": traffic, "Evaluate": loss}
			}}
		leaks := devicetest.NoLeaks(t, backend)
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			for n, at := range []string{"before", "first", "middle", "last"} {
				ranks.Play(t, traintest.Case{At: at, Fault: traintest.Faults[(k+n)%len(traintest.Faults)],
					Victim: n % l.ranks})
			}
		})
		programs.Close()
		leaks()
	}
}

func TestMain(m *testing.M) { devicetest.Main(m) }
