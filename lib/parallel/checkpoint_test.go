package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// sameState checks that the checkpoints of two folders hold the same bits.
func sameState(t *testing.T, name, got, want string) {
	t.Helper()
	a, b := traintest.State(t, got), traintest.State(t, want)
	if at := traintest.Differ(a, b); at != "" || len(a) != len(b) {
		t.Errorf("%s: %d entries, want %d; other bits in %q", name, len(a), len(b), at)
	}
}

// rules are optimizers with states of all kinds, one for each part of the toy.
func rules() optim.Optimizer {
	eight := optim.Adam8bit(1e-2)
	eight.Block, eight.Least = 4, 1
	return optim.Grouped(optim.AdamW(1e-2), optim.Group{Has: optim.Named("in.w"), Optimizer: optim.Adafactor(1e-2)},
		optim.Group{Has: optim.Named("in.b", "scale"), Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}},
		optim.Group{Has: optim.Named("h0.w"), Optimizer: eight},
		optim.Group{Has: optim.Named("out.w"), Optimizer: optim.Adam(1e-2)})
}

// TestCheckpoints resumes runs in one layout after another, on one device (a nil layout) and back. Each loads the
// previous checkpoint, saves the same bits again, and trains like an uninterrupted run on one device. Shards are
// padded. In half types the state has master weights and the numbers of loss scaling.
func TestCheckpoints(t *testing.T) {
	fp16 := must.Get(precision.ParsePolicy("fp16"))(t)
	zero3 := &parallel.Layout{Replicas: 8, ZeRO: 3}
	for name, c := range map[string]struct {
		recipe  train.Recipe
		batches traintest.Batches
		bound   float64
		layouts []*parallel.Layout
	}{
		"GPT": {train.Recipe{Model: small(1), Optimizer: optim.AdamW(1e-2), Clip: 0.5}, texts(8), lossBound,
			[]*parallel.Layout{{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 1}, {Data: 4, ZeRO: 3}, nil,
				{Replicas: 2, Pipe: 2, Tensor: 2}, {Replicas: 2, Ring: 2, RingRanks: true, Ulysses: 2, ZeRO: 1}}},
		"experts": {train.Recipe{Model: experts(expert.Sigmoid, 1), Optimizer: optim.AdamW(1e-2), Clip: 0.5}, texts(8),
			lossBound, []*parallel.Layout{{Data: 4, Expert: 4, ZeRO: 1}, {Replicas: 4, Expert: 2, ZeRO: 1}, nil,
				{Data: 2, Expert: 2, Tensor: 2, ZeRO: 3}, {Replicas: 2, Expert: 2, Pipe: 2}, nil}},
		"all optimizers": {train.Recipe{Model: toy.Model(true), Optimizer: rules()}, toy.Batches(24), lossBound,
			[]*parallel.Layout{zero3, {Replicas: 3, ZeRO: 1}, {Data: 4, ZeRO: 2},
				{Replicas: 4, ZeRO: 3, Shards: 2}, {Data: 3, ZeRO: 3}, nil, zero3}},
		"half types": {train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1), Precision: fp16},
			toy.Batches(6), 2e-3, []*parallel.Layout{{Pipe: 2, Data: 3, ZeRO: 2, Microbatches: 1},
				{Replicas: 2, ZeRO: 3}, {Pipe: 3, Schedule: pipeline.KindGPipe}, {Replicas: 2, Data: 3, ZeRO: 1}}},
	} {
		_, want := traintest.Alone(t, devices(), c.recipe, len(c.layouts), c.batches)
		dir := ""
		for step, l := range c.layouts {
			what, next, again := fmt.Sprintf("%s, step %d, %+v", name, step, l), t.TempDir(), t.TempDir()
			loss, err := resumed(t, c.recipe, l, dir, again, next, c.batches)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if dir != "" {
				sameState(t, what+", saved again", again, dir)
			}
			if off := math.Abs(loss/want[step].Loss - 1); !(off <= c.bound) {
				t.Errorf("%s: the loss is %g, of a run that goes on %g", what, loss, want[step].Loss)
			}
			dir = next
		}
	}
}

// resumed loads the checkpoint in the folder from, unless that is "", and saves it again; makes a step, and saves.
func resumed(t *testing.T, r train.Recipe, l *parallel.Layout, from, again, next string,
	batches traintest.Batches) (float64, error) {
	t.Helper()
	ctx := t.Context()
	load := func(load func(context.Context, *checkpoint.Checkpoint) error, save func(string) error) error {
		if from == "" {
			return nil
		}
		c, note := traintest.Last(t, from), ""
		if err := errors.Join(load(ctx, c), c.Meta(&note), save(again)); err != nil || note != "note" {
			return fmt.Errorf("a checkpoint with note %q: %w", note, err)
		}
		return nil
	}
	if l == nil {
		run := traintest.One(t, devices(), r)
		save := func(dir string) error { _, err := run.Save(ctx, dir, "note", 0); return err }
		err := load(run.Load, save)
		m, failed := run.Step(batches(run.Steps()))
		return m.Loss, errors.Join(err, failed, save(next), run.Close())
	}
	run := start(t, r, *l)
	save := func(dir string) error { return run.Save(ctx, dir, "note", 0) }
	err := load(run.Load, save)
	m, failed := stepOn(run, batches)
	return m.Loss, errors.Join(err, failed, save(next), run.Close())
}

// TestFailedSave has a run save to where it cannot, and load what is not there or of another recipe: errors, after
// which it goes on as if they had not been, and which leave nothing behind.
func TestFailedSave(t *testing.T) {
	const rows = 8
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(0.5)}
	want, _ := traintest.Alone(t, devices(), r, 2, toy.Batches(rows))
	root := t.TempDir()
	file, good := filepath.Join(root, "file"), filepath.Join(root, "good")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	other := r
	other.Optimizer = optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}
	foreign := start(t, other, parallel.Layout{})
	must.Do(t, foreign.Save(t.Context(), good, nil, 0))
	run := start(t, r, parallel.Layout{Pipe: 2, Data: 2, ZeRO: 1})
	steps(t, run, 1, toy.Batches(rows))
	if err := run.Save(t.Context(), file, nil, 0); err == nil {
		t.Error("a checkpoint in a file")
	}
	if err := run.Load(context.Background(), nil); err == nil {
		t.Error("no checkpoint is loaded")
	}
	if err := run.Load(t.Context(), traintest.Last(t, good)); err == nil {
		t.Error("a checkpoint of another recipe is loaded")
	}
	steps(t, run, 2, toy.Batches(rows))
	near(t, "after what failed", paramsOf(t, run), want, unitBound)
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 2 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
}
