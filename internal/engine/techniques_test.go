package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

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
		check(t, err)
	}
	got, err := run.Params(context.Background())
	check(t, err)
	check(t, run.Close())
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
		check(t, p.Check())
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
			check(t, err)
		}
		if (i+1)%every != 0 {
			continue
		}
		var states [][]*tensors.Tensor
		for _, one := range alone {
			s, err := one.State(0)
			check(t, err)
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
		check(t, err)
		for _, one := range alone {
			check(t, one.Load(context.Background(), traintest.Last(t, dir)))
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
	check(t, tensors.MutableFlatData(a, func(flat []float32) {
		for i := range flat {
			flat[i] = (flat[i] + other[i]) / 2
		}
	}))
}

// TestOffload trains with inputs of blocks, optimizer states, or both in host memory: the results are equal, a
// checkpoint can be loaded, and states are on the device only for their update.
func TestOffload(t *testing.T) {
	r := train.Recipe{Model: toy.Layers(6, false), Optimizer: optim.AdamW(0.1)}
	p, members := engine.Serial(r.Model.(chain.Model), 2)
	p = recompute.Blocks(p)
	want := learn(t, engine.Spec{Recipe: r, Plans: []*step.Plan{p}, Members: members}, 3, 8)
	for _, ahead := range []int{0, 1, 3} {
		for name, q := range map[string]*step.Plan{"inputs": offload.Inputs(p, ahead), "states": offload.States(p,
			ahead),
			"both":    offload.Inputs(offload.States(p, ahead), ahead),
			"at once": offload.UpdateAtOnce(p),
			"updates": offload.Updates(p, ahead), "each update": offload.Updates(offload.UpdateAtOnce(p), ahead),
			"all": offload.Inputs(offload.Updates(offload.UpdateAtOnce(p), ahead), ahead)} {
			check(t, q.Check())
			spec := engine.Spec{Recipe: r, Plans: []*step.Plan{q}, Members: members}
			got := learn(t, spec, 3, 8)
			if off := traintest.Apart(t, want, got); !(off <= 16) {
				t.Errorf("%s, %d ahead: %g units apart", name, ahead, off)
			}
			run := start(t, devicetest.Open(t, 8), spec)
			in, out := toy.Batch(0, 8)
			_, err := run.Step(context.Background(), in, out)
			check(t, err)
			all := optim.States(r.Optimizer, r.Model.Params()).Bytes()
			if most := run.Memory()[memest.Optimizer]; strings.Contains("states both", name) &&
				(most == 0 || most > all*int64(1+2*ahead)/3) && ahead < 3 {
				t.Errorf("%s, %d ahead: %d bytes of states on the device, of %d in all", name, ahead, most, all)
			}
			dir := t.TempDir()
			check(t, run.Save(context.Background(), dir, nil, 0))
			check(t, run.Load(context.Background(), traintest.Last(t, dir)))
			_, err = run.Step(context.Background(), in, out)
			check(t, err)
			check(t, run.Close())
		}
	}
}
