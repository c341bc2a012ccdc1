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
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

const (
	three  = 3 // ranks
	theEnd = 5 // steps
	never  = -1
)

var (
	toyRecipe = train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(1e-2)}
	toyForms  = []zero.Options{{Stage: 1}, {Stage: 2, Accumulate: 2}, {Stage: 3, Prefetch: 1}}
	toySource = toy.Batches(2 * 2 * three)
)

// together runs a group of ranks.
func together(ctx context.Context, backend *xla.Backend, r train.Recipe, ranks int, o zero.Options,
	do func(ctx context.Context, g group.Group, one train.Trainer) error) error {
	return group.Run(ctx, ranks, func(ctx context.Context, g group.Group) error {
		one, err := zero.Join(ctx, g, backend, g.Rank(), r, o)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, g, one), one.Close())
	})
}

// sameState checks that two states have the same bits.
func sameState(t *testing.T, what string, got, want traintest.Named) {
	t.Helper()
	if name := traintest.Differ(want, got); name != "" || len(got) != len(want) {
		t.Errorf("%s: %d entries, want %d; other bits in %q", what, len(got), len(want), name)
	}
}

// trainOn trains from the last checkpoint in a folder, if there is one. It saves every second step and the last. The
// last rank dies before a step.
func trainOn(ctx context.Context, g group.Group, one train.Trainer, dir string, end, dies int) error {
	if path, err := checkpoint.Latest(dir); err == nil {
		c, err := checkpoint.Open(path)
		if err := errors.Join(err, one.Load(ctx, c)); err != nil {
			return err
		}
	}
	for one.Steps() < end {
		if one.Steps() == dies && g.Rank() == g.Size()-1 {
			return traintest.ErrLuck
		}
		if _, err := learn(ctx, one, 1, toySource); err != nil {
			return err
		}
		if one.Steps()%2 == 0 || one.Steps() == end {
			if err := one.Save(ctx, dir, nil, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// goOn has a new group train to a step.
func goOn(backend *xla.Backend, o zero.Options, dir string, end, dies int) error {
	return together(context.Background(), backend, toyRecipe, three, o,
		func(ctx context.Context, g group.Group, one train.Trainer) error {
			return trainOn(ctx, g, one, dir, end, dies)
		})
}

// TestAfterFault kills a rank a step after a checkpoint. A new group continues from there, and its final state has the
// bits of a run without interruption.
func TestAfterFault(t *testing.T) {
	backend := devicetest.Open(t, 8)
	for _, o := range toyForms {
		leaks := devicetest.NoLeaks(t, backend)
		dir, whole := t.TempDir(), t.TempDir()
		if err := goOn(backend, o, dir, theEnd, 3); !errors.Is(err, traintest.ErrLuck) {
			t.Errorf("stage %d: a rank is killed: %v", o.Stage, err)
		}
		if c := traintest.Last(t, dir); c.Step != 2 {
			t.Errorf("stage %d: the last checkpoint is of step %d", o.Stage, c.Step)
		}
		must.Do(t, errors.Join(goOn(backend, o, dir, theEnd, never), goOn(backend, o, whole, theEnd, never)))
		sameState(t, fmt.Sprint("stage ", o.Stage), traintest.State(t, dir), traintest.State(t, whole))
		leaks()
	}
}

// TestFailedSave has a rank that cannot write, since its shard of an unused parameter is not finite. All ranks get an
// error, the previous checkpoint is the only one, and all ranks can continue.
func TestFailedSave(t *testing.T) {
	backend, dir, file := devicetest.Open(t, 8), t.TempDir(), filepath.Join(t.TempDir(), "file")
	must.Do(t, errors.Join(goOn(backend, toyForms[2], dir, theEnd, never), os.WriteFile(file, nil, 0o600)))
	want := traintest.State(t, dir)
	model, victim := toy.Model(true), 0
	initial, idle := model.Initial, model.Params().Index("idle")
	model.Initial = func() ([]*tensors.Tensor, error) {
		values, err := initial()
		flat := tensors.MustCopyFlatData[float32](values[idle])
		flat[2*victim] = float32(math.NaN()) // each of three ranks has two of the five elements
		values[idle] = tensors.FromFlatDataAndDimensions(flat, len(flat))
		return values, err
	}
	r := toyRecipe
	r.Model = model
	for victim = range three {
		if err := together(t.Context(), backend, r, three, toyForms[2],
			func(ctx context.Context, g group.Group, one train.Trainer) error {
				for _, to := range []string{dir, dir, file} {
					if _, err := learn(ctx, one, 1, toySource); err != nil {
						return err
					}
					says := "another rank could not write"
					switch {
					case to == file && g.Rank() == 0:
						says = "not a directory"
					case to == file:
					case g.Rank() == victim:
						says = "idle has NaNs or infinities"
					case g.Rank() == 0:
						says = fmt.Sprintf("rank %d could not write", victim)
					}
					if err := one.Save(ctx, to, nil, 1); err == nil || !strings.Contains(err.Error(), says) {
						return fmt.Errorf("rank %d cannot write: %v; want %q", victim, err, says)
					}
				}
				return nil
			}); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
	sameState(t, "the checkpoint before", traintest.State(t, dir), want)
}

// TestFailedLoad has ranks load a checkpoint with a damaged file, checkpoints of different steps, or nil on one rank.
// All get an error, and are unchanged.
func TestFailedLoad(t *testing.T) {
	const victim = 1
	backend, o := devicetest.Open(t, 8), toyForms[2]
	early, late, damaged := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, end := range map[string]int{early: 1, late: theEnd, damaged: theEnd} {
		must.Do(t, goOn(backend, o, dir, end, never))
	}
	one, five, bad := traintest.Last(t, early), traintest.Last(t, late), traintest.Last(t, damaged)
	files, err := filepath.Glob(filepath.Join(bad.Path, "*.safetensors"))
	if must.Do(t, err); len(files) != three {
		t.Fatalf("files %v: want one of each rank", files)
	}
	slices.Sort(files)
	data := must.Get(os.ReadFile(files[victim]))(t)
	data[len(data)-1] ^= 1
	must.Do(t, os.WriteFile(files[victim], data, 0o600))
	want := learned(t, backend, toyRecipe, form{three, false, o}, 3, toySource)
	file := filepath.Base(files[victim])
	if err := together(t.Context(), backend, toyRecipe, three, o,
		func(ctx context.Context, g group.Group, run train.Trainer) error {
			var got traintest.Named
			for _, c := range []struct {
				load [three]*checkpoint.Checkpoint
				want [three]string
			}{
				{[three]*checkpoint.Checkpoint{bad, bad, bad}, [three]string{file, file, file}},
				{[three]*checkpoint.Checkpoint{one, one, five},
					[three]string{"rank 2 loads the checkpoint of step 5, this rank that of step 1",
						"rank 2 loads the checkpoint of step 5",
						"rank 0 loads the checkpoint of step 1, this rank that of step 5"}},
				{[three]*checkpoint.Checkpoint{one, nil, one}, [three]string{"rank 1 could not read",
					"the checkpoint is nil", "rank 1 could not read"}},
			} {
				err := run.Load(ctx, c.load[g.Rank()])
				if err == nil || !strings.Contains(err.Error(), c.want[g.Rank()]) {
					return fmt.Errorf("%v, want %q", err, c.want[g.Rank()])
				}
				if got, err = learn(ctx, run, 1, toySource); err != nil {
					return err
				}
			}
			if name := traintest.Differ(got, want); name != "" || run.Steps() != 3 {
				return fmt.Errorf("%d steps; %s is not that of ranks that loaded nothing", run.Steps(), name)
			}
			if err := run.Load(ctx, five); err != nil || run.Steps() != theEnd {
				return fmt.Errorf("%d steps, %v", run.Steps(), err)
			}
			return nil
		}); err != nil {
		t.Error(err)
	}
}
