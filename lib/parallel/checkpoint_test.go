package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// stateIn is all that is in the newest checkpoint of a folder.
func stateIn(t *testing.T, dir string) traintest.Named {
	t.Helper()
	c := traintest.Last(t, dir)
	values, err := c.Read(t.Context(), c.Tree())
	if err != nil {
		t.Fatal(err)
	}
	named, err := params.Zip(c.Tree(), values)
	if err != nil {
		t.Fatal(err)
	}
	return named
}

// sameState checks that the checkpoints of two folders hold the same bits.
func sameState(t *testing.T, name, got, want string) {
	t.Helper()
	a, b := stateIn(t, got), stateIn(t, want)
	if at := traintest.Differ(a, b); at != "" || len(a) != len(b) {
		t.Errorf("%s: %d entries, want %d; other bits in %q", name, len(a), len(b), at)
	}
}

// TestCheckpoints resumes a run in one layout after another, on one device and back. Each loads the previous
// checkpoint, saves the same bits again, and trains like an uninterrupted run on one device. Shards are padded.
func TestCheckpoints(t *testing.T) {
	const rows = 8
	r := train.Recipe{Model: small(1), Optimizer: optim.AdamW(1e-2), Clip: 0.5}
	first := parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 1}
	layouts := []*parallel.Layout{&first, {Data: 4, ZeRO: 3}, nil, {Replicas: 2, Pipe: 2, Tensor: 2},
		{Replicas: 2, Ring: 2, RingRanks: true, Ulysses: 2, ZeRO: 1}}
	_, want := traintest.Alone(t, devices(), r, len(layouts), texts(rows))
	var dir string
	for step, l := range layouts {
		var load func(ctx context.Context, c *checkpoint.Checkpoint) error
		var save func(dir string) error
		var learn func(inputs, targets *tensors.Tensor) (train.Metrics, error)
		var end func() error
		if l == nil {
			one := traintest.One(t, devices(), r)
			load, learn, end = one.Load, one.Step, one.Close
			save = func(dir string) error { _, err := one.Save(t.Context(), dir, "note", 0); return err }
		} else {
			one := start(t, r, *l)
			load, end = one.Load, one.Close
			learn = func(in, out *tensors.Tensor) (train.Metrics, error) { return one.Step(t.Context(), in, out) }
			save = func(dir string) error { return one.Save(t.Context(), dir, "note", 0) }
		}
		name := fmt.Sprintf("step %d, %+v", step, l)
		if dir != "" {
			again := t.TempDir()
			c := traintest.Last(t, dir)
			var note string
			err := errors.Join(load(t.Context(), c), c.Meta(&note), save(again))
			if err != nil || c.Step != step || note != "note" {
				t.Fatalf("%s: a checkpoint of step %d with note %q: %v", name, c.Step, note, err)
			}
			sameState(t, name+", saved again", again, dir)
		}
		m, err := learn(texts(rows)(step))
		if err != nil {
			t.Fatal(err)
		}
		if off := math.Abs(m.Loss/want[step].Loss - 1); !(off <= lossBound) {
			t.Errorf("%s: the loss is %g, of a run that goes on %g", name, m.Loss, want[step].Loss)
		}
		dir = t.TempDir()
		if err := errors.Join(save(dir), end()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckpointsOfEngines has the engines of ZeRO and of pipelines load a layout's checkpoint and save it again, and a
// layout load theirs: the same bits. The state has master copies and the loss scaling's numbers, and the last layout
// goes on with parameters in half types that it makes of the master copies.
func TestCheckpointsOfEngines(t *testing.T) {
	policy, err := precision.ParsePolicy("fp16")
	if err != nil {
		t.Fatal(err)
	}
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1), Precision: policy}
	_, want := traintest.Alone(t, devices(), r, 3, toyBatches(6))
	l := parallel.Layout{Pipe: 2, Data: 3, ZeRO: 2, Microbatches: 1}
	dir, ofZero, ofPipe := t.TempDir(), t.TempDir(), t.TempDir()
	run := start(t, r, l)
	steps(t, run, 2, toyBatches(6))
	if err := run.Save(context.Background(), dir, nil, 0); err != nil {
		t.Fatal(err)
	}
	c := traintest.Last(t, dir)

	z, err := zero.New(t.Context(), devices(), r, 2, zero.Options{Stage: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Load(t.Context(), c), z.Save(t.Context(), ofZero, nil, 0), z.Close()); err != nil {
		t.Fatal(err)
	}
	sameState(t, "zero", ofZero, dir)

	gpipe, err := pipeline.GPipe(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := pipeline.New(t.Context(), devices(), r, pipeline.Options{Schedule: gpipe})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pipe.Load(t.Context(), traintest.Last(t, ofZero)), pipe.Save(t.Context(), ofPipe, nil, 0),
		pipe.Close()); err != nil {
		t.Fatal(err)
	}
	sameState(t, "pipeline", ofPipe, dir)

	again := t.TempDir()
	other := start(t, r, parallel.Layout{Replicas: 2, Data: 3, ZeRO: 1})
	if err := errors.Join(other.Load(t.Context(), traintest.Last(t, ofPipe)), other.Save(t.Context(), again, nil,
		0)); err != nil || other.Steps() != 2 {
		t.Fatalf("%d steps, %v", other.Steps(), err)
	}
	sameState(t, "back", again, dir)
	const half = 2e-3 // of a number, as half types round
	m := steps(t, other, 3, toyBatches(6))[0]
	if off := math.Abs(m.Loss/want[2].Loss - 1); !(off <= half) || math.Abs(want[0].Loss/want[2].Loss-1) < 10*half {
		t.Errorf("the losses are %g, of a run that goes on %g, and first %g", m.Loss, want[2].Loss, want[0].Loss)
	}
}

// TestFailedSave has a run save to where it cannot, and load what is not there or of another recipe: errors, after
// which it goes on as if they had not been, and which leave nothing behind.
func TestFailedSave(t *testing.T) {
	const rows = 8
	r := train.Recipe{Model: toy.Model(true), Optimizer: optim.SGD(0.5)}
	want, _ := traintest.Alone(t, devices(), r, 2, toyBatches(rows))
	root := t.TempDir()
	file, good := filepath.Join(root, "file"), filepath.Join(root, "good")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := r
	other.Optimizer = optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}
	foreign := start(t, other, parallel.Layout{})
	if err := foreign.Save(t.Context(), good, nil, 0); err != nil {
		t.Fatal(err)
	}
	run := start(t, r, parallel.Layout{Pipe: 2, Data: 2, ZeRO: 1})
	steps(t, run, 1, toyBatches(rows))
	if err := run.Save(t.Context(), file, nil, 0); err == nil {
		t.Error("a checkpoint in a file")
	}
	if err := run.Load(context.Background(), nil); err == nil {
		t.Error("no checkpoint is loaded")
	}
	if err := run.Load(t.Context(), traintest.Last(t, good)); err == nil {
		t.Error("a checkpoint of another recipe is loaded")
	}
	steps(t, run, 2, toyBatches(rows))
	near(t, "after what failed", paramsOf(t, run), want, unitBound)
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 2 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
}
