package parallel_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
)

const faultRows = 8

// TestFaults has ranks fail, panic, stall or be cancelled, before a step and in it, in a ring, in one pipeline, in two
// that train together, and where two groups of ranks shard a copy of the state each. Every other rank gets an error
// that names it; whatever is asked of a rank after that says what to do; and nothing is left on the devices.
func TestFaults(t *testing.T) {
	toys := train.Recipe{Model: toy.Layers(2, true), Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}, Clip: 1}
	ring := parallel.Layout{Ring: 3, RingRanks: true, Ulysses: 2}
	shared := toys
	shared.Model = small(2)
	shared = sharing(shared, ring, sequence.Zigzag)
	for _, form := range []struct {
		layout  parallel.Layout
		recipe  train.Recipe
		batches traintest.Batches
		cases   []traintest.Case
	}{
		{ring, shared, texts(faultRows), []traintest.Case{
			{At: "first", Fault: traintest.Fails, Victim: 2},
			{At: "middle", Fault: traintest.Stalls, Victim: 1},
			{At: "middle", Fault: traintest.Panics, Victim: 0},
			{At: "last", Fault: traintest.Cancels, Victim: 2},
		}},
		{parallel.Layout{Pipe: 2, Data: 2, ZeRO: 2}, toys, toy.Batches(faultRows), []traintest.Case{
			{At: "first", Fault: traintest.Fails, Victim: 0},
			{At: "last", Fault: traintest.Fails, Victim: 1},
			{At: "middle", Fault: traintest.Cancels, Victim: 1},
			{At: "middle", Fault: traintest.Panics, Victim: 0},
		}},
		{parallel.Layout{Replicas: 2, Pipe: 2, Data: 2, ZeRO: 1}, toys, toy.Batches(faultRows), []traintest.Case{
			{At: "before", Fault: traintest.Fails, Victim: 3},
			{At: "last", Fault: traintest.Cancels, Victim: 2},
			{At: "first", Fault: traintest.Stalls, Victim: 1},
		}},
		{parallel.Layout{Replicas: 4, ZeRO: 3, Shards: 2}, toys, toy.Batches(faultRows), []traintest.Case{ // two copies
			{At: "first", Fault: traintest.Fails, Victim: 3},
			{At: "middle", Fault: traintest.Stalls, Victim: 2},
			{At: "middle", Fault: traintest.Panics, Victim: 0},
			{At: "last", Fault: traintest.Cancels, Victim: 1},
		}},
	} {
		plan := must.Get(parallel.NewPlan(form.recipe, form.layout))(t)
		ranks := traintest.Ranks[train.Trainer]{Size: form.layout.Ranks(), Batches: form.batches,
			Folder: t.TempDir(),
			Join: func(ctx context.Context, g group.Group) (train.Trainer, error) {
				return plan.Join(ctx, g, devices(), g.Rank()*form.layout.PerRank(), parallel.Options{})
			},
			Ask: func(r train.Trainer) map[string]error {
				_, params := r.Params(context.Background())
				_, traffic := r.Traffic()
				return map[string]error{"Params": params, "Traffic": traffic}
			}}
		leaks := devicetest.NoLeaks(t, devices())
		t.Run(fmt.Sprintf("%+v", form.layout), func(t *testing.T) {
			for _, c := range form.cases {
				ranks.Play(t, c)
			}
		})
		leaks()
	}
}

// TestRunFails has all ranks of a run take longer for a pass than they may: the run says by what it was lost, and its
// devices are free.
func TestRunFails(t *testing.T) {
	leaks := devicetest.NoLeaks(t, devices())
	r := train.Recipe{Model: toy.Layers(2, true), Optimizer: optim.SGD(0.5)}
	run, err := parallel.New(t.Context(), devices(), r, parallel.Layout{Pipe: 2, Data: 2},
		parallel.Options{Timeout: time.Nanosecond})
	must.Do(t, err)
	in, out := toy.Batch(0, faultRows)
	_, err = run.Step(t.Context(), in, out)
	must.Refuse(t, "a step", err, "it takes longer than 1ns")
	for range 2 {
		_, err = run.Step(t.Context(), in, out)
		must.Refuse(t, "a step after it", err, "join a new group and load the last checkpoint")
	}
	if err := run.Close(); err != nil {
		t.Error(err)
	}
	leaks()
}

// TestClose leaves nothing on the devices, of whatever layout.
func TestClose(t *testing.T) {
	leaks := devicetest.NoLeaks(t, devices())
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1), Clip: 1}
	for _, l := range []parallel.Layout{{Data: 2, ZeRO: 3}, {Replicas: 2, Pipe: 2, Data: 2, ZeRO: 2, Recompute: true}} {
		run := start(t, r, l)
		steps(t, run, 2, toy.Batches(faultRows))
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	leaks()
}
