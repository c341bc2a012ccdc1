package zero_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// checkpointed is a way to train: it has each of its trainers do some work.
type checkpointed func(t *testing.T, work func(ctx context.Context, z zero.Trainer) error)

func asRanks(e *zero.Engine, world int) checkpointed {
	return func(t *testing.T, work func(ctx context.Context, z zero.Trainer) error) {
		t.Helper()
		if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
			r, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			return errors.Join(work(ctx, r), r.Close())
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func asProgram(backend *xla.Backend, recipe train.Recipe, o zero.Options, world int) checkpointed {
	return func(t *testing.T, work func(ctx context.Context, z zero.Trainer) error) {
		t.Helper()
		mesh, err := backend.Mesh(xla.Axis(train.Axis, world))
		if err != nil {
			t.Fatal(err)
		}
		run, err := zero.New(mesh, recipe, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(work(context.Background(), run), run.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns all that is in the newest checkpoint of a folder.
func read(t *testing.T, dir string) (*checkpoint.Checkpoint, []*tensors.Tensor) {
	t.Helper()
	c := traintest.Last(t, dir)
	all, err := c.Read(context.Background(), c.Tree())
	if err != nil {
		t.Fatal(err)
	}
	return c, all
}

// TestCheckpoints passes a run on from one way to train to the next: eight ranks in stage 3, three in stage 1, a program in
// stage 2, copies, updates on the host, and back. Each loads what the one before it saved and saves it again: the same bits, states of all
// kinds of rules among them. Then each takes a step from there: all learn the same.
func TestCheckpoints(t *testing.T) {
	ctx := context.Background()
	backend := devicetest.Open(t, 8)
	eight := optim.Adam8bit(1e-2)
	eight.Block, eight.Least = 4, 1
	recipe := train.Recipe{Model: toy.Model(true), Rule: optim.Grouped(rules(), optim.Group{Has: optim.Named("in.w"), Rule: eight})}
	const rows = 24
	first := asRanks(engine(t, backend, recipe, zero.Options{Stage: 3}), 8)
	dir := t.TempDir()
	first(t, func(ctx context.Context, z zero.Trainer) error {
		_, err := steady(ctx, z, 3, toyBatches(rows))
		return errors.Join(err, z.Save(ctx, dir, "note", 0))
	})
	c, want := read(t, dir)
	var one sync.Mutex // of the ranks
	var learned named
	for _, way := range []struct {
		name string
		checkpointed
	}{
		{"three ranks, stage 1", asRanks(engine(t, backend, recipe, zero.Options{Stage: 1}), 3)},
		{"a program, stage 2", asProgram(backend, recipe, zero.Options{Stage: 2}, 4)},
		{"copies", asRanks(engine(t, backend, recipe, zero.Options{Stage: 3, Shards: 2}), 4)},
		{"updates on the host", asRanks(engine(t, backend, recipe, zero.Options{Stage: 2, Offload: true}), 2)},
		{"a program, stage 3", asProgram(backend, recipe, zero.Options{Stage: 3}, 3)},
		{"back", first},
	} {
		again := t.TempDir()
		way.checkpointed(t, func(ctx context.Context, z zero.Trainer) error {
			if err := errors.Join(z.Load(ctx, c), z.Save(ctx, again, "note", 0)); err != nil {
				return err
			}
			after, err := steady(ctx, z, 1, toyBatches(rows))
			if err != nil {
				return err
			}
			one.Lock()
			defer one.Unlock()
			if z.Steps() != 4 {
				t.Errorf("%s: %d steps after the fourth", way.name, z.Steps())
			}
			if learned == nil {
				learned = after
			}
			if off := traintest.Apart(t, learned, after); !(off <= bound) {
				t.Errorf("%s: the next step is %g units off", way.name, off)
			}
			return nil
		})
		next, got := read(t, again)
		for i, s := range next.Tree() {
			if !got[i].Equal(want[c.Tree().Index(s.Name)]) {
				t.Errorf("%s: %s is not the same bit for bit", way.name, s)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d arrays, want %d", way.name, len(got), len(want))
		}
		c = next
	}
	// What shards nothing loads it, too, and the other way round.
	run := traintest.One(t, backend, recipe)
	defer run.Close()
	whole := t.TempDir()
	if err := run.Load(ctx, c); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Save(ctx, whole, "note", 0); err != nil {
		t.Fatal(err)
	}
	c, _ = read(t, whole)
	first(t, func(ctx context.Context, z zero.Trainer) error { return z.Load(ctx, c) })
}

// TestDamage cuts, removes and changes each rank's file: nobody loads it, every rank says so and trains on, and the checkpoint before it
// is still good.
func TestDamage(t *testing.T) {
	const world = 2
	backend := devicetest.Open(t, world)
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(1e-2)}
	train := asRanks(engine(t, backend, recipe, zero.Options{Stage: 3}), world)
	dir := t.TempDir()
	train(t, func(ctx context.Context, z zero.Trainer) error {
		var errs []error
		for range 2 {
			_, err := steady(ctx, z, 1, toyBatches(2*world))
			errs = append(errs, err, z.Save(ctx, dir, nil, 0))
		}
		return errors.Join(errs...)
	})
	path := traintest.Last(t, dir).Path
	files, err := filepath.Glob(filepath.Join(path, "*.safetensors"))
	if err != nil || len(files) != world {
		t.Fatalf("files %q, %v: want one for each of %d ranks", files, err, world)
	}
	for _, file := range files {
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		flipped := slices.Clone(good)
		flipped[len(flipped)-3] ^= 4
		for what, damage := range map[string]func() error{
			"flipped":   func() error { return os.WriteFile(file, flipped, 0o600) },
			"truncated": func() error { return os.Truncate(file, int64(len(good)-1)) },
			"missing":   func() error { return os.Remove(file) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			c, err := checkpoint.Open(path)
			if (err == nil) != (what == "flipped") { // sizes are looked at first
				t.Errorf("%s: opening says %v", what, err)
			}
			if err == nil {
				train(t, func(ctx context.Context, z zero.Trainer) error {
					if err := z.Load(ctx, c); err == nil {
						t.Errorf("%s: %s was loaded", what, file)
					}
					_, err := steady(ctx, z, 1, toyBatches(2*world))
					return err
				})
			}
			if err := os.WriteFile(file, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	before, err := checkpoint.Open(filepath.Join(dir, "step-00000001"))
	if err != nil {
		t.Fatal(err)
	}
	train(t, func(ctx context.Context, z zero.Trainer) error { return z.Load(ctx, before) })
}
