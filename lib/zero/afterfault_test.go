package zero_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/zero"
)

// TestAfterFault kills a rank a step after a checkpoint. A new group goes on from there, and the whole state at the end is that
// of a run without interruption, bit for bit.
func TestAfterFault(t *testing.T) {
	for _, form := range toyForms {
		e := warm(t, form)
		leaks := devicetest.NoLeaks(t, threeDevices())
		dir, whole := t.TempDir(), t.TempDir()
		if err := goOn(e, dir, 3); !errors.Is(err, traintest.ErrLuck) {
			t.Errorf("stage %d: a rank is killed: %v", form.Stage, err)
		}
		if c := traintest.Last(t, dir); c.Step != 2 {
			t.Errorf("stage %d: the last checkpoint is of step %d", form.Stage, c.Step)
		}
		for _, d := range []string{dir, whole} {
			if err := goOn(e, d, never); err != nil {
				t.Fatal(err)
			}
		}
		if name := differIn(stateIn(t, dir), stateIn(t, whole)); name != "" {
			t.Errorf("stage %d: %s is not that of the run that nobody disturbed", form.Stage, name)
		}
		leaks()
	}
}

const (
	never  = -1
	theEnd = 5
)

// goOn has a new group train to the end.
func goOn(e *zero.Engine, dir string, dies int) error {
	return group.Run(context.Background(), three, func(ctx context.Context, g group.Group) error {
		return trainOn(ctx, g, e, g.Rank(), dir, theEnd, dies)
	})
}

// trainOn joins a rank and trains from the last checkpoint in a folder, if there is one. It saves every second step and the
// last. The last rank dies before a step.
func trainOn(ctx context.Context, g group.Group, e *zero.Engine, device int, dir string, end, dies int) error {
	rank, err := e.Join(ctx, g, device)
	if err != nil {
		return err
	}
	defer rank.Close()
	if path, err := checkpoint.Latest(dir); err == nil {
		c, err := checkpoint.Open(path)
		if err == nil {
			err = rank.Load(ctx, c)
		}
		if err != nil {
			return err
		}
	}
	for rank.Steps() < end {
		if rank.Steps() == dies && g.Rank() == three-1 {
			return traintest.ErrLuck
		}
		inputs, targets := faultSource(rank.Steps())
		if _, err := rank.Step(ctx, inputs, targets); err != nil {
			return err
		}
		if rank.Steps()%2 == 0 || rank.Steps() == end {
			if err := rank.Save(ctx, dir, nil, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// stateIn is the whole state in the last checkpoint in a folder.
func stateIn(t *testing.T, dir string) []*tensors.Tensor {
	t.Helper()
	state, err := toyRecipe.Read(t.Context(), traintest.Last(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// differIn returns the name of an entry of two states whose bits differ, or "".
func differIn(a, b []*tensors.Tensor) string {
	for i, s := range toyRecipe.State() {
		if !a[i].Equal(b[i]) {
			return s.Name
		}
	}
	return ""
}

// TestFailedSave has one rank not able to write: its shard of a parameter that nothing uses is not finite. All ranks get an
// error, the checkpoint before stays, nothing else does, and all ranks go on.
func TestFailedSave(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(goOn(warm(t, toyForms[2]), dir, never), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := stateIn(t, dir)
	model, victim := toy.Model(true), 0
	initial, idle := model.Initial, model.Params().Index("idle")
	model.Initial = func() ([]*tensors.Tensor, error) {
		values, err := initial()
		flat := tensors.MustCopyFlatData[float32](values[idle])
		flat[2*victim] = float32(math.NaN()) // each of three ranks has two of the five elements
		values[idle] = tensors.FromFlatDataAndDimensions(flat, len(flat))
		return values, err
	}
	recipe := toyRecipe
	recipe.Model = model
	e := engine(t, threeDevices(), recipe, zero.Options{Stage: 3})
	for victim = range three {
		if err := group.Run(t.Context(), three, func(ctx context.Context, g group.Group) error {
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			for _, to := range []string{dir, dir, file} {
				inputs, targets := faultSource(rank.Steps())
				if _, err := rank.Step(ctx, inputs, targets); err != nil {
					return err
				}
				says := "another rank could not write"
				switch {
				case to == file && g.Rank() == 0:
					says = "not a directory"
				case to == file:
				case g.Rank() == victim:
					says = "idle has values that are not finite"
				case g.Rank() == 0:
					says = fmt.Sprintf("rank %d could not write", victim)
				}
				if err := rank.Save(ctx, to, nil, 1); err == nil || !strings.Contains(err.Error(), says) {
					return fmt.Errorf("rank %d cannot write: %v; want %q", victim, err, says)
				}
			}
			return rank.Close()
		}); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
	if name := differIn(stateIn(t, dir), want); name != "" {
		t.Errorf("%s of the checkpoint before is not what it was", name)
	}
}

// TestDamagedLoad has ranks load a checkpoint in which one rank's shards are damaged. All get an error, and go on from where
// they stood.
func TestDamagedLoad(t *testing.T) {
	const victim, steps = 1, 2
	for _, form := range toyForms {
		e := warm(t, form)
		dir := t.TempDir()
		if err := goOn(e, dir, never); err != nil {
			t.Fatal(err)
		}
		c := traintest.Last(t, dir)
		files, err := filepath.Glob(filepath.Join(c.Path, "*.safetensors"))
		if err != nil || len(files) != three {
			t.Fatalf("files %v, %v", files, err)
		}
		slices.Sort(files)
		data, err := os.ReadFile(files[victim])
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1] ^= 1
		if err := os.WriteFile(files[victim], data, 0o600); err != nil {
			t.Fatal(err)
		}
		want := ranks(t, e, three, steps, faultSource)
		leaks := devicetest.NoLeaks(t, threeDevices())
		if err := group.Run(t.Context(), three, func(ctx context.Context, g group.Group) error {
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			for range steps {
				says := fmt.Sprintf("rank %d could not read", victim)
				if g.Rank() == victim {
					says = filepath.Base(files[victim])
				}
				if err := rank.Load(ctx, c); err == nil || !strings.Contains(err.Error(), says) {
					return fmt.Errorf("damaged: %v; want %q", err, says)
				}
				if _, err := steady(ctx, rank, 1, faultSource); err != nil {
					return err
				}
			}
			got, err := rank.Params(ctx)
			if err != nil || rank.Steps() != steps {
				return fmt.Errorf("%d steps, %w", rank.Steps(), err)
			}
			if name := traintest.Differ(got, want); name != "" {
				return fmt.Errorf("%s is not that of ranks that loaded nothing", name)
			}
			return rank.Close()
		}); err != nil {
			t.Errorf("stage %d: %v", form.Stage, err)
		}
		leaks()
	}
}

// TestLoadDisagrees has ranks load checkpoints of different steps, or one none. All get an error, and go on.
func TestLoadDisagrees(t *testing.T) {
	e := warm(t, toyForms[2])
	early, late := t.TempDir(), t.TempDir()
	if err := errors.Join(group.Run(t.Context(), three, func(ctx context.Context, g group.Group) error {
		return trainOn(ctx, g, e, g.Rank(), early, 1, never)
	}), goOn(e, late, never)); err != nil {
		t.Fatal(err)
	}
	one, five := traintest.Last(t, early), traintest.Last(t, late)
	if err := group.Run(t.Context(), three, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		for _, c := range []struct {
			load [three]*checkpoint.Checkpoint
			want [three]string
		}{
			{[three]*checkpoint.Checkpoint{one, one, five}, [three]string{"rank 2 loads the checkpoint of step 5, this one that of step 1",
				"rank 2 loads the checkpoint of step 5", "rank 0 loads the checkpoint of step 1, this one that of step 5"}},
			{[three]*checkpoint.Checkpoint{one, nil, one}, [three]string{"rank 1 could not read", "the checkpoint is nil", "rank 1 could not read"}},
		} {
			if err := rank.Load(ctx, c.load[g.Rank()]); err == nil || !strings.Contains(err.Error(), c.want[g.Rank()]) {
				return fmt.Errorf("%v, want %q", err, c.want[g.Rank()])
			}
		}
		if err := rank.Load(ctx, five); err != nil || rank.Steps() != theEnd {
			return fmt.Errorf("%d steps, %v", rank.Steps(), err)
		}
		return rank.Close()
	}); err != nil {
		t.Error(err)
	}
}
