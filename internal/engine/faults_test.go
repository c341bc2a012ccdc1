package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// TestFaults makes a rank fail, panic, stall or be cancelled before a step, and in its first, middle and last call of a
// group, in layouts with every kind of operation between ranks. All other ranks get an error that names it, later calls
// say what to do, and nothing is left on the devices.
func TestFaults(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(3, true), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Clip: 1}
	for k, l := range []layout{
		{ranks: 3, devices: 1, micro: 1, zero: 3, ahead: 1}, {ranks: 3, devices: 1, micro: 2, zero: 1},
		{ranks: 3, devices: 1, micro: 3, pipe: 3, schedule: "1f1b"}, {ranks: 3, devices: 2, micro: 1},
		{ranks: 3, devices: 1, micro: 1, zero: 2, host: true},
	} {
		spec := l.plan(t, r.Model.(chain.Model))
		spec.Recipe = r
		programs, err := engine.New(backend, spec)
		check(t, err)
		ranks := traintest.Ranks[*engine.Rank]{Size: l.ranks, Folder: t.TempDir(),
			Batches: func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, 12) },
			Join: func(ctx context.Context, g group.Group) (*engine.Rank, error) {
				return programs.Join(ctx, g, g.Rank()*l.devices)
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
