package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
)

// faultCase is a fault of a rank in the second of some steps.
type faultCase struct {
	plan   *parallel.Plan
	at     string // before the step, or in its first, middle or last call of a group
	fault  traintest.Fault
	victim int
}

// play trains with the fault, and says what is wrong with what the ranks get.
func (c faultCase) play(t *testing.T, patience time.Duration) error {
	l := c.plan.Layout()
	ranks := l.Ranks()
	var survivors sync.WaitGroup
	survivors.Add(ranks - 1)
	all, errs := make([]*parallel.Rank, ranks), make([]error, ranks)
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		view := traintest.NewTrap(g, func() error { return c.fault.Strike(survivors.Wait, cancel) })
		if all[me], err = c.plan.Join(ctx, view, devices(), me*l.PerRank(), parallel.Options{}); err != nil {
			return err
		}
		for step := range 3 {
			before := view.Calls()
			if me == c.victim && step == 1 && c.at == "before" {
				if err := c.fault.Strike(survivors.Wait, cancel); err != nil {
					return err
				}
			}
			inputs, targets := toy.Batch(step, faultRows)
			if _, err := all[me].Step(own, inputs, targets); err != nil {
				return err
			}
			if me == c.victim && step == 0 {
				view.Arm(c.at, view.Calls()-before)
			}
		}
		return nil
	}
	_ = group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		if g.Rank() != c.victim {
			defer survivors.Done()
		}
		errs[g.Rank()] = train(ctx, g)
		return errs[g.Rank()]
	}, group.Timeout(patience))
	for r, one := range all {
		if one == nil {
			return fmt.Errorf("rank %d has not joined: %w", r, errs[r])
		}
		if err := errs[r]; r != c.victim && !c.names(err) {
			return fmt.Errorf("rank %d: %v; that does not name rank %d", r, err, c.victim)
		}
		if err := lostRank(t, one); err != nil {
			return fmt.Errorf("rank %d, then: %w", r, err)
		}
	}
	return nil
}

const faultRows = 8

// names tells whether the error of a rank that is not at fault says which one is, or, where a part of the ranks has other numbers,
// which ranks these are.
func (c faultCase) names(err error) bool {
	return err != nil && (strings.Contains(err.Error(), fmt.Sprintf("rank %d", c.victim)) ||
		strings.Contains(err.Error(), "in a group of the ranks "))
}

// lostRank says what is wrong with what a rank answers when it is lost, and closes it, twice.
func lostRank(t *testing.T, r *parallel.Rank) error {
	ctx := context.Background()
	made := r.Steps()
	inputs, targets := toy.Batch(1, faultRows)
	_, step := r.Step(ctx, inputs, targets) // who failed before it is lost now
	_, params := r.Params()
	_, traffic := r.Traffic()
	save, load := r.Save(ctx, t.TempDir(), nil, 1), r.Load(ctx, nil)
	err := traintest.Lost(map[string]error{"Step": step, "Params": params, "Traffic": traffic, "Save": save, "Load": load})
	if r.Steps() != made {
		err = errors.Join(err, fmt.Errorf("a lost rank has made %d steps, before %d", r.Steps(), made))
	}
	return errors.Join(err, r.Close(), r.Close())
}

// TestFaults has ranks of two devices fail, panic, stall or be cancelled, before a step and in it, in one pipeline and in two that train
// together. Every other rank gets an error that names it; whatever is asked of a rank after that says what to do; and nothing is left
// on the devices.
func TestFaults(t *testing.T) {
	for _, form := range []struct {
		layout parallel.Layout
		cases  []faultCase
	}{
		{parallel.Layout{Pipe: 2, Data: 2, ZeRO: 2}, []faultCase{
			{at: "first", fault: traintest.Fails, victim: 0},
			{at: "last", fault: traintest.Fails, victim: 1},
			{at: "middle", fault: traintest.Cancels, victim: 1},
			{at: "middle", fault: traintest.Panics, victim: 0},
		}},
		{parallel.Layout{Replicas: 2, Pipe: 2, Data: 2, ZeRO: 1}, []faultCase{
			{at: "before", fault: traintest.Fails, victim: 3},
			{at: "last", fault: traintest.Cancels, victim: 2},
			{at: "first", fault: traintest.Stalls, victim: 1},
		}},
	} {
		r := train.Recipe{Model: toy.Layers(2, true), Rule: optim.SGDRule{LR: 0.5, Momentum: 0.9}, Clip: 1}
		plan, err := parallel.NewPlan(r, form.layout)
		if err != nil {
			t.Fatal(err)
		}
		leaks := devicetest.NoLeaks(t, devices())
		for _, c := range form.cases {
			c.plan = plan
			if err := c.patiently(t); err != nil {
				t.Errorf("%+v: rank %d %s, %s: %v", form.layout, c.victim, c.fault, c.at, err)
			}
		}
		leaks()
	}
}

// patiently plays a case. With a rank that stalls the others wait for a time that is short, and longer in further tries: on a busy
// machine another rank may be late as well, at the compiler, say.
func (c faultCase) patiently(t *testing.T) error {
	if c.fault != traintest.Stalls {
		return c.play(t, 10*time.Minute)
	}
	err := errors.New("not played")
	for wait := 4 * time.Second; err != nil && wait < 5*time.Minute; wait *= 4 {
		err = c.play(t, wait)
	}
	return err
}

// TestRunFails has all ranks of a run take longer for a pass than they may: the run says by what it was lost, and its devices are free.
func TestRunFails(t *testing.T) {
	leaks := devicetest.NoLeaks(t, devices())
	r := train.Recipe{Model: toy.Layers(2, true), Rule: optim.SGD(0.5)}
	run, err := parallel.New(t.Context(), devices(), r, parallel.Layout{Pipe: 2, Data: 2}, parallel.Options{Timeout: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run.Step(toy.Batch(0, faultRows))
	checkError(t, "a step", err, "it takes longer than 1ns")
	for range 2 {
		_, err = run.Step(toy.Batch(1, faultRows))
		checkError(t, "a step after it", err, "join a new group and load the last checkpoint")
	}
	if err := run.Close(); err != nil {
		t.Error(err)
	}
	leaks()
}

// TestTargetsRefused: a batch whose targets do not fit the model is refused before any rank begins, and the run goes on.
func TestTargetsRefused(t *testing.T) {
	run := start(t, train.Recipe{Model: toy.Layers(2, true), Rule: optim.SGD(0.5)}, parallel.Layout{Pipe: 2, Data: 2})
	inputs, _ := toy.Batch(0, faultRows)
	_, err := run.Step(inputs, inputs) // of another width than the outputs
	checkError(t, "targets", err, "targets of shape (Float32)[4, 4]")
	steps(t, run, 1, toyBatches(faultRows))
}

// TestClose leaves nothing on the devices, of whatever layout.
func TestClose(t *testing.T) {
	leaks := devicetest.NoLeaks(t, devices())
	r := train.Recipe{Model: toy.Model(true), Rule: optim.AdamW(0.1), Clip: 1}
	for _, l := range []parallel.Layout{{Data: 2, ZeRO: 3}, {Replicas: 2, Pipe: 2, Data: 2, ZeRO: 2, Recompute: true}} {
		run := start(t, r, l)
		steps(t, run, 2, toyBatches(faultRows))
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	leaks()
}
