package zero_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// half is mixed precision in which all that is communicated has 2 bytes.
var half = precision.Policy{Params: dtypes.Float32, Compute: dtypes.BFloat16, Output: dtypes.Float32,
	Reduce: dtypes.BFloat16}

// A model whose shards need no padding has exactly the paper's bytes (Rajbhandari et al. 2020, §5, K = 12): 4Ψ+12Ψ/N,
// 2Ψ+14Ψ/N and 16Ψ/N for Ψ parameters. A step moves 2 or 3 times the bytes of the parameters, of which a ring sends
// (N−1)/N.
func ExampleOptions_Bytes() {
	recipe := train.Recipe{Model: deep(4, 16), Optimizer: optim.Adam(1e-3), Precision: half}
	params := int64(recipe.Model.Params().Size())
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for stage := 1; stage <= 3; stage++ {
		o := zero.Options{Stage: stage}
		held, err := o.Bytes(recipe, 8)
		must(err)
		p, err := o.Plan(recipe, 8)
		must(err)
		sizes, err := o.Sizes(recipe, 8)
		must(err)
		sent, err := p.Traffic(sizes)
		must(err)
		formula := []int64{4*params + 12*params/8, 2*params + 14*params/8, 16 * params / 8}[stage-1]
		fmt.Printf("stage %d: %d bytes held, the formula says %d; %d Ψ sent\n", stage, total(held), formula,
			sent[0][train.Axis]/(2*params))
	}
	// Output:
	// stage 1: 5632 bytes held, the formula says 5632; 2 Ψ sent
	// stage 2: 3840 bytes held, the formula says 3840; 2 Ψ sent
	// stage 3: 2048 bytes held, the formula says 2048; 3 Ψ sent
}

func total(bytes map[memest.Kind]int64) (sum int64) {
	for _, n := range bytes {
		sum += n
	}
	return sum
}

// TestPlan compares the memory and the messages of every rank with the plan, exactly, in worlds of up to 8, hardly any
// of which divides a parameter of the toy; and the plan with the formulas for the padded number of parameters.
func TestPlan(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(3, true), Optimizer: optim.Adam(1e-2), Precision: half}
	for stage := 1; stage <= 3; stage++ {
		for _, f := range []form{{3, false, zero.Options{Stage: stage}}, {8, false, zero.Options{Stage: stage}},
			{2, false, zero.Options{Stage: stage, Accumulate: 2, Prefetch: stage / 3}},
			{4, false, zero.Options{Stage: stage, Shards: 2}}} {
			o, world, shards := f.Options, f.devices, f.devices
			if o.Shards > 0 {
				shards = o.Shards
			}
			want := must.Get(o.Bytes(r, world))(t)
			p := must.Get(o.Plan(r, world))(t)
			sizes := must.Get(o.Sizes(r, world))(t)
			moved := must.Get(p.Traffic(sizes))(t)
			held := must.Get(p.Memory(sizes))(t)
			padded := int64(0)
			for _, s := range r.Model.Params() {
				padded += int64((s.Size() + shards - 1) / shards * shards)
			}
			shard := padded / int64(shards)
			formula := []int64{4*padded + 12*shard, 2*padded + 14*shard, 16 * shard}[stage-1]
			if total(want) != formula {
				t.Errorf("%+v: planned %v, want %d bytes for %d parameters", f, want, formula, padded)
			}
			must.Do(t, group.Run(t.Context(), world, func(ctx context.Context, inner group.Group) error {
				counted := group.Count(inner)
				g, err := group.ByPlan(counted, plan.Ring)
				if err != nil {
					return err
				}
				one, err := zero.Join(ctx, g, backend, g.Rank(), r, o)
				if err != nil {
					return err
				}
				var sent int64
				for range 2 {
					sent = -int64(counted.Total().Bytes)
					inputs, targets := toy.Batch(0, 4*world)
					if _, err := one.Step(ctx, inputs, targets); err != nil {
						return err
					}
					sent += int64(counted.Total().Bytes)
				}
				loss, err := plan.Count(plan.AllReduce, plan.Ring, world, 1, 8)
				if err != nil {
					return err
				}
				n, rank := int64(world), g.Rank()
				planned := moved[rank][train.Axis]*(n-1)/n + int64(loss.Sent[rank].Bytes)
				if o.Shards == 0 && sent != planned { // else they go by parts of the group
					t.Errorf("%+v: rank %d sends %d bytes, planned %d", f, rank, sent, planned)
				}
				if got, err := one.Traffic(); err != nil || !maps.Equal(got, moved[rank]) {
					t.Errorf("%+v: rank %d sends %v, planned %v: %v", f, rank, got, moved[rank], err)
				}
				has := one.Memory()
				for _, kind := range []memest.Kind{memest.Parameters, memest.Master, memest.Optimizer} {
					if has[kind] != want[kind] {
						t.Errorf("%+v: rank %d holds %d bytes of %s, planned %d", f, rank, has[kind], kind, want[kind])
					}
				}
				peak, shard := held[rank].Peak, slices.Max(sizes.Reduced) // which is added to another one
				if grads := has[memest.Gradients]; grads < want[memest.Gradients] || grads > peak.Gradients+shard {
					t.Errorf("%+v: rank %d holds %d bytes of gradients, planned %d, with those of a moment %d", f, rank,
						grads, want[memest.Gradients], peak.Gradients)
				}
				if stage == 3 && has[memest.Communication] != peak.Gathered {
					t.Errorf("%+v: rank %d gathers %d bytes, planned %d", f, rank, has[memest.Communication],
						peak.Gathered)
				}
				return one.Close()
			}))
		}
	}
}
