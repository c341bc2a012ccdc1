package pipeline_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// stateIn is all that is in the newest checkpoint of a folder, as a result.
func stateIn(t *testing.T, dir string) (r result) {
	t.Helper()
	c := traintest.Last(t, dir)
	values, err := c.Read(t.Context(), c.Tree())
	if err == nil {
		r.params, err = params.Zip(c.Tree(), values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCheckpoints passes a run on from one pipeline to the next, with other schedules, cuts and copies, and to one device and back.
// Each loads what the one before it saved and saves it again: the same bits. Then each takes a step from there: all learn the same.
func TestCheckpoints(t *testing.T) {
	const m = 4
	e, batches := tiedEngine(t), toyBatches(m*microRows)
	form := func(kind schedule.Kind, ranks, microbatches, replicas int, cut ...int) pipeline.Options {
		return pipeline.Options{Schedule: newSchedule(t, kind, ranks, microbatches, 0), Replicas: replicas, Cut: cut}
	}
	dir := t.TempDir()
	first := training{engine: e, options: form(schedule.Kind1F1B, 3, m, 1)}
	if err := first.joined(t.Context(), func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
		if _, err := steady(ctx, r, 2, batches); err != nil {
			return err
		}
		return r.Save(ctx, dir, "note", 0)
	}); err != nil {
		t.Fatal(err)
	}
	want := stateIn(t, dir)
	var learned result
	for _, o := range []pipeline.Options{
		form(schedule.KindZBV, 2, m, 1, 1, 6, 3, 2),
		form(schedule.KindGPipe, 2, m/2, 2),
		form(schedule.KindDualPipe, 2, m, 1, 4, 8),
		form(schedule.KindNaive, 1, m, 1),
		form(schedule.Kind1F1B, 3, m, 1),
	} {
		again, next, c := t.TempDir(), t.TempDir(), traintest.Last(t, dir)
		if err := (training{engine: e, options: o}).joined(t.Context(), func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
			if err := r.Load(ctx, c); err != nil {
				return err
			}
			if err := r.Save(ctx, again, "note", 0); err != nil {
				return err
			}
			if _, err := steady(ctx, r, 3, batches); err != nil {
				return err
			}
			return r.Save(ctx, next, nil, 0)
		}); err != nil {
			t.Fatalf("%s: %v", o.Schedule.Name, err)
		}
		same(t, o.Schedule.Name+", saved again", stateIn(t, again), want)
		var note string
		if c := traintest.Last(t, again); c.Step != 2 || c.Meta(&note) != nil || note != "note" {
			t.Errorf("%s: step %d, note %q", o.Schedule.Name, c.Step, note)
		}
		if learned.params == nil {
			learned = stateIn(t, next)
		}
		near(t, o.Schedule.Name+", after a step", stateIn(t, next), learned)
		dir = again
	}
	whole, state := wholeStep(t, traintest.Last(t, dir), batches)
	same(t, "one device, saved again", state, want)
	near(t, "one device, after a step", stateIn(t, whole), learned)
	c := traintest.Last(t, whole)
	if err := first.joined(t.Context(), func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
		if err := r.Load(ctx, c); err != nil || r.Steps() != 3 {
			return fmt.Errorf("back from one device: %d steps, %v", r.Steps(), err)
		}
		return r.Save(ctx, dir, nil, 0)
	}); err != nil {
		t.Fatal(err)
	}
	same(t, "back from one device", stateIn(t, dir), stateIn(t, whole))
}

// wholeStep loads a checkpoint on one device, saves, takes a step, and saves what came of it.
func wholeStep(t *testing.T, c *checkpoint.Checkpoint, batches batchOf) (after string, before result) {
	t.Helper()
	run := traintest.One(t, devices(), tiedRecipe())
	defer run.Close()
	if err := run.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := run.Save(t.Context(), dir, nil, 0); err != nil {
		t.Fatal(err)
	}
	before = stateIn(t, dir)
	inputs, targets := batches(run.Steps())
	if _, err := run.Step(inputs, targets); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Save(t.Context(), dir, nil, 0); err != nil {
		t.Fatal(err)
	}
	return dir, before
}

// TestFailedSave has a rank that cannot write, and one that cannot read: all ranks get an error, no checkpoint is there that was not
// before, and all go on.
func TestFailedSave(t *testing.T) {
	const m = 4
	batches := toyBatches(m * microRows)
	o := pipeline.Options{Schedule: newSchedule(t, schedule.Kind1F1B, 2, m, 0)}
	want := training{engine: freeEngine(t), options: o, steps: 2, batches: batches}.run(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for victim := range 2 {
		good := t.TempDir()
		of := training{engine: freeEngine(t), options: o}
		if err := of.joined(t.Context(), func(ctx context.Context, g group.Group, r *pipeline.Rank) error {
			if _, err := steady(ctx, r, 1, batches); err != nil {
				return err
			}
			if err := r.Save(ctx, good, nil, 0); err != nil {
				return err
			}
			to, c := good, (*checkpoint.Checkpoint)(nil)
			if g.Rank() == victim {
				to = file
			} else {
				path, err := checkpoint.Latest(good)
				if err == nil {
					c, err = checkpoint.Open(path)
				}
				if err != nil {
					return err
				}
			}
			if err := r.Save(ctx, to, nil, 0); err == nil {
				return fmt.Errorf("rank %d saves to a file, and rank %d has no error", victim, g.Rank())
			}
			if err := r.Load(ctx, c); err == nil || g.Rank() != victim && !strings.Contains(err.Error(), fmt.Sprintf("rank %d", victim)) {
				return fmt.Errorf("rank %d loads nothing, and rank %d has the error %v", victim, g.Rank(), err)
			}
			got, err := steady(ctx, r, 2, batches)
			if err != nil {
				return err
			}
			for name, v := range got.params {
				if !v.Equal(want.params[name]) {
					return fmt.Errorf("%s is not that of ranks that saved nothing", name)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if c := traintest.Last(t, good); c.Step != 1 {
			t.Errorf("the checkpoint is of step %d", c.Step)
		}
		if entries, err := os.ReadDir(good); err != nil || len(entries) != 1 {
			t.Errorf("in the folder: %v, %v", entries, err)
		}
	}
}

// TestAsynchronousCheckpoint goes on from a checkpoint as if it had not been: PipeDream fills the pipeline at each step.
func TestAsynchronousCheckpoint(t *testing.T) {
	const m = 4
	batches, dir := toyBatches(m*microRows), t.TempDir()
	o := pipeline.Options{Schedule: newSchedule(t, schedule.KindPipeDream, 3, m, 0)}
	tr := training{engine: freeEngine(t), options: o, steps: 3, batches: batches}
	want := tr.run(t)
	ctx := t.Context()
	save := func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
		if _, err := steady(ctx, r, 2, batches); err != nil {
			return err
		}
		return r.Save(ctx, dir, nil, 0)
	}
	if err := tr.joined(ctx, save); err != nil {
		t.Fatal(err)
	}
	c := traintest.Last(t, dir)
	load := func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
		if err := r.Load(ctx, c); err != nil {
			return err
		}
		got, err := steady(ctx, r, 3, batches)
		for name, v := range got.params {
			if !v.Equal(want.params[name]) {
				return fmt.Errorf("%s is not that of a run that went on", name)
			}
		}
		return err
	}
	if err := tr.joined(ctx, load); err != nil {
		t.Error(err)
	}
	state := stateIn(t, dir).params
	for name, want := range map[string]int32{"train.steps": 2, "train.updates": 2 * m} {
		if got := tensors.ToScalar[int32](state.Get(name)); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}
