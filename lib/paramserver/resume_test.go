package paramserver_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
)

// leg is a part of a run: ranks of a form, which continue from the last checkpoint in a folder if there is one.
type leg struct {
	form  string
	to    int // the step to end at
	every int // the steps between checkpoints
	kill  int // the step in which a rank dies; none if it is negative
}

// run makes the leg, and returns the steps whose batches each rank has asked for.
func (l leg) run(t *testing.T, dir string) (asked [][]int, err error) {
	t.Helper()
	e := toyEngine(t, l.form)
	batches := toyRows(l.form, world)
	var last *checkpoint.Checkpoint
	if _, err := checkpoint.Latest(dir); err == nil {
		last = traintest.Last(t, dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	asked = make([][]int, world)
	ranks := make([]*paramserver.Worker, world)
	err = group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		me := g.Rank()
		rank, err := e.Join(ctx, g, me)
		if err != nil {
			return err
		}
		ranks[me] = rank
		if last != nil {
			err = rank.Load(ctx, last)
		}
		for err == nil && rank.Steps() < l.to {
			step := rank.Steps()
			asked[me] = append(asked[me], step)
			if step == l.kill && me == world-1 {
				return traintest.ErrLuck
			}
			inputs, targets := batches(step)
			if _, err = rank.Step(ctx, inputs, targets); err == nil && rank.Steps()%l.every == 0 {
				err = rank.Save(ctx, dir, nil, 1)
			}
		}
		if err != nil {
			return err
		}
		return rank.Close()
	})
	for _, rank := range ranks {
		if rank != nil {
			rank.Close() // of the rank that died
		}
	}
	return asked, err
}

// stateOf reads the last checkpoint in a folder, which must be of a step.
func stateOf(t *testing.T, dir string, r train.Recipe, step int) []*tensors.Tensor {
	t.Helper()
	c := traintest.Last(t, dir)
	if c.Step != step {
		t.Errorf("the last checkpoint is of step %d, want %d", c.Step, step)
	}
	state := must.Get(r.Read(t.Context(), c))(t)
	return state
}

// mustEqual compares full states: parameters, optimizer states and counters.
func mustEqual(t *testing.T, name string, got, want []*tensors.Tensor) {
	t.Helper()
	for i, s := range toyRecipe.State() {
		if !got[i].Equal(want[i]) {
			t.Errorf("%s: %s is not the same bit for bit", name, s.Name)
		}
	}
}

// span are the numbers from one to below another.
func span(from, to int) (numbers []int) {
	for i := from; i < to; i++ {
		numbers = append(numbers, i)
	}
	return numbers
}

// TestResume kills a rank two steps after a checkpoint. A new group resumes from there: only the batches since then are
// repeated, and the final state has the bits of a run without interruption, unless servers are asynchronous.
func TestResume(t *testing.T) {
	const end = 9
	for form := range toyForms {
		dir, whole := t.TempDir(), t.TempDir()
		l := leg{form: form, to: end, every: 3, kill: 8}
		before, err := l.run(t, dir)
		if err == nil {
			t.Fatalf("%s: no error", form)
		}
		l.kill = -1
		after, err := l.run(t, dir)
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if _, err := l.run(t, whole); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		for r := range world {
			// A survivor may hear of the death before or after it asks for the batch of that step.
			if got := before[r]; !slices.Equal(got, span(0, len(got))) || len(got) < 7 || len(got) > 9 ||
				!slices.Equal(after[r], span(6, end)) {
				t.Errorf("%s: rank %d asked for %v, and after the checkpoint for %v", form, r, got, after[r])
			}
		}
		got, want := stateOf(t, dir, toyRecipe, end), stateOf(t, whole, toyRecipe, end)
		if form == "async" {
			continue
		}
		mustEqual(t, form, got, want)
	}
}

// TestExchange has ranks load the checkpoint of one device, and the reverse.
func TestExchange(t *testing.T) {
	run := traintest.One(t, threeDevices(), toyRecipe)
	defer run.Close()
	dir := t.TempDir()
	train := func(steps int) {
		for range steps {
			inputs, targets := toy.Batch(run.Steps(), 2*world)
			must.Get(run.Step(inputs, targets))(t)
		}
		must.Get(run.Save(t.Context(), dir, nil, 1))(t)
	}
	train(2)
	l := leg{form: "servers", to: 4, every: 2, kill: -1}
	if asked, err := l.run(t, dir); err != nil || !slices.Equal(asked[0], span(2, 4)) {
		t.Fatalf("steps %v, error %v", asked, err)
	}
	must.Do(t, run.Load(t.Context(), traintest.Last(t, dir)))
	want := stateOf(t, dir, toyRecipe, 4)
	got := must.Get(run.State(0))(t)
	mustEqual(t, "one device", got, want)
	train(1)
	stateOf(t, dir, toyRecipe, 5)
}

// TestRefusedCheckpoints has rank 0 unable to save and to load: all ranks get an error and can continue.
func TestRefusedCheckpoints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	other := train.Recipe{Model: toyRecipe.Model, Optimizer: optim.SGD(0.1)}
	state := must.Get(other.Initial())(t)
	path := must.Get(other.Save(t.Context(), t.TempDir(), state, nil, 1))(t)
	const form = "servers"
	e := toyEngine(t, form)
	want := together(t, e, world, 3, toyRows(form, world))[0]
	var refused atomic.Int32
	results := make([]result, world)
	if err := group.Run(t.Context(), world, func(ctx context.Context, g group.Group) error {
		me := g.Rank()
		rank, err := e.Join(ctx, g, me)
		if err != nil {
			return err
		}
		inputs, targets := toy.Batch(0, 2*world)
		if _, err := rank.Step(ctx, inputs, targets); err != nil {
			return err
		}
		if err := rank.Save(ctx, filepath.Join(file, "below"), nil, 1); err != nil {
			refused.Add(1)
		}
		c, err := checkpoint.Open(path)
		if err != nil {
			return err
		}
		if err := rank.Load(ctx, c); err != nil {
			refused.Add(1)
		}
		results[me], err = steady(ctx, g, rank, 2, toyRows(form, world))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if refused.Load() != 2*world {
		t.Errorf("%d errors, want one of each of %d ranks, twice", refused.Load(), world)
	}
	for r := range results {
		if name := traintest.Differ(results[r].params, want.params); name != "" {
			t.Errorf("rank %d then has another %s", r, name)
		}
	}
}
