package zero_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/devicetest"
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
var half = precision.Policy{Params: dtypes.Float32, Compute: dtypes.BFloat16, Output: dtypes.Float32, Reduce: dtypes.BFloat16}

// A model whose shards need no padding has exactly the paper's bytes (Rajbhandari et al. 2020, §5, K = 12): 4Ψ+12Ψ/N,
// 2Ψ+14Ψ/N and 16Ψ/N for Ψ parameters.
func ExampleNewPlan() {
	recipe := train.Recipe{Model: deep(4, 16), Rule: optim.Adam(1e-3), Precision: half}
	params := int64(recipe.Model.Params().Size())
	for stage := 1; stage <= 3; stage++ {
		p, err := zero.NewPlan(recipe, zero.Options{Stage: stage}, 8)
		if err != nil {
			panic(err)
		}
		formula := []int64{4*params + 12*params/8, 2*params + 14*params/8, 16 * params / 8}[stage-1]
		psi := float64(2*params) * 7 / 8 // bytes of the parameters, less 1/N
		fmt.Printf("stage %d: %d bytes held, the formula says %d; %g Ψ sent\n", stage, p.Bytes.Total(), formula, float64(p.Traffic.Total())/psi)
	}
	// Output:
	// stage 1: 5632 bytes held, the formula says 5632; 2 Ψ sent
	// stage 2: 3840 bytes held, the formula says 3840; 2 Ψ sent
	// stage 3: 2048 bytes held, the formula says 2048; 3 Ψ sent
}

// sends counts what each rank's messages have in a step, and returns what it holds.
func sends(t *testing.T, e *zero.Engine, world int) (sent []int64, held []zero.Bytes) {
	t.Helper()
	sent, held = make([]int64, world), make([]zero.Bytes, world)
	if err := group.Run(context.Background(), world, func(ctx context.Context, inner group.Group) error {
		counted := group.Count(inner)
		g, err := group.ByPlan(counted, plan.Ring)
		if err != nil {
			return err
		}
		r, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		inputs, targets := toy.Batch(0, 4*world)
		for range 2 {
			sent[g.Rank()] = -int64(counted.Total().Bytes)
			if _, err := r.Step(ctx, inputs, targets); err != nil {
				return err
			}
			sent[g.Rank()] += int64(counted.Total().Bytes)
		}
		held[g.Rank()] = r.Bytes()
		return r.Close()
	}); err != nil {
		t.Fatal(err)
	}
	return sent, held
}

// TestPlan holds what ranks hold and send, message by message, against the plan, in worlds of up to 8, hardly any of which
// divides a parameter of the toy: exactly, on every rank. And the plan against the formulas in the padded number of parameters.
func TestPlan(t *testing.T) {
	backend := devicetest.Open(t, 8)
	recipe := train.Recipe{Model: toy.Layers(2, true), Rule: optim.Adam(1e-2), Precision: half}
	for stage := 1; stage <= 3; stage++ {
		for _, o := range []zero.Options{{Stage: stage}, {Stage: stage, Accumulate: 2, Prefetch: stage / 3}} {
			e := engine(t, backend, recipe, o)
			worlds := []int{1, 2, 3, 5, 8}
			if o.Accumulate > 0 {
				worlds = []int{3}
			} else if stage < 3 {
				worlds = []int{3, 8}
			}
			for _, world := range worlds {
				p, err := zero.NewPlan(recipe, o, world)
				if err != nil {
					t.Fatal(err)
				}
				padded := int64(recipe.Model.Params().Size() + p.Padding)
				shard := padded / int64(world)
				formula := []int64{4*padded + 12*shard, 2*padded + 14*shard, 16 * shard}[stage-1]
				if p.Bytes.Total() != formula || p.Padding >= world*len(recipe.Model.Params()) {
					t.Errorf("stage %d, %d ranks: planned %v, want %d bytes for %d parameters", stage, world, p.Bytes, formula, padded)
				}
				sent, held := sends(t, e, world)
				for rank := range world {
					if sent[rank] != p.Traffic.Total() {
						t.Errorf("%+v: rank %d of %d sends %d bytes, planned %+v", o, rank, world, sent[rank], p.Traffic)
					}
					states := maps.Clone(held[rank])
					delete(states, memest.Communication)
					if !maps.Equal(states, p.Bytes) {
						t.Errorf("%+v: rank %d of %d holds %v, planned %v", o, rank, world, states, p.Bytes)
					}
				}
			}
		}
	}
}

// TestHybridPlan holds the plan of copies against what ranks hold.
func TestHybridPlan(t *testing.T) {
	const world = 4
	backend := devicetest.Open(t, world)
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.Adam(1e-2)}
	for _, o := range []zero.Options{{Stage: 3, Shards: 2}, {Stage: 2, Offload: true}} {
		p, err := zero.NewPlan(recipe, o, world)
		if err != nil {
			t.Fatal(err)
		}
		_, held := sends(t, engine(t, backend, recipe, o), world)
		for rank := range world {
			delete(held[rank], memest.Communication)
			if !maps.Equal(held[rank], p.Bytes) {
				t.Errorf("%+v: rank %d holds %v, planned %v", o, rank, held[rank], p.Bytes)
			}
		}
	}
}
