package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// faultCase is a fault of a rank in the second of some steps.
type faultCase struct {
	pipeline *pipeline.Pipeline
	rows     int
	at       string // before the step, or in its first, middle or last call of a group
	fault    traintest.Fault
	victim   int
	folder   string
}

// play trains with the fault, and says what is wrong with what the ranks get.
func (c faultCase) play(patience time.Duration) error {
	ranks := c.pipeline.Ranks()
	var survivors sync.WaitGroup
	survivors.Add(ranks - 1)
	all, errs := make([]*pipeline.Rank, ranks), make([]error, ranks)
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		view := traintest.NewTrap(g, func() error { return c.fault.Strike(survivors.Wait, cancel) })
		if all[me], err = c.pipeline.Join(ctx, view, me%deviceCount); err != nil {
			return err
		}
		for step := range 3 {
			before := view.Calls()
			if me == c.victim && step == 1 && c.at == "before" {
				if err := c.fault.Strike(survivors.Wait, cancel); err != nil {
					return err
				}
			}
			inputs, targets := toyBatches(c.rows)(step)
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
	for r, rank := range all {
		if err := errs[r]; r != c.victim && !c.names(err) {
			return fmt.Errorf("rank %d: %v; that does not name rank %d", r, err, c.victim)
		}
		if err := c.lost(rank); err != nil {
			return fmt.Errorf("rank %d, then: %w", r, err)
		}
	}
	return nil
}

// names tells whether the error of a rank that is not at fault says which one is, or, where ranks that have parameters in common have
// other numbers, which ranks these are.
func (c faultCase) names(err error) bool {
	return err != nil && (strings.Contains(err.Error(), fmt.Sprintf("rank %d", c.victim)) ||
		strings.Contains(err.Error(), "in a group of the ranks ["))
}

// lost says what is wrong with what a rank answers when it is lost, and closes it, twice.
func (c faultCase) lost(rank *pipeline.Rank) error {
	ctx := context.Background()
	steps := rank.Steps()
	inputs, targets := toyBatches(c.rows)(1)
	_, step := rank.Step(ctx, inputs, targets) // who failed before it is lost now
	_, params := rank.Params()
	save, load := rank.Save(ctx, c.folder, nil, 1), rank.Load(ctx, nil)
	err := traintest.Lost(map[string]error{"Step": step, "Params": params, "Save": save, "Load": load})
	if rank.Steps() != steps {
		err = errors.Join(err, fmt.Errorf("a lost rank has made %d steps, before %d", rank.Steps(), steps))
	}
	return errors.Join(err, rank.Close(), rank.Close())
}

// TestFaults has ranks with stages of a model fail, panic, stall or be cancelled, before a step and in it, in one pipeline and in two
// that train together. Every other rank gets an error that names it; whatever is asked of a rank after that says what to do; and
// nothing is left on the devices.
func TestFaults(t *testing.T) {
	victim := 0
	for _, form := range []struct {
		kind     schedule.Kind
		ranks    int
		replicas int
	}{{schedule.KindZBH1, 3, 1}, {schedule.KindPipeDream, 2, 1}, {schedule.Kind1F1B, 2, 2}} {
		const m = 4
		s := newSchedule(t, form.kind, form.ranks, m, 0)
		o := pipeline.Options{Schedule: s, Replicas: form.replicas, Timeout: time.Minute}
		rows := form.replicas * m * microRows
		training{engine: freeEngine(t), options: o, steps: 1, batches: toyBatches(rows)}.run(t) // which compiles
		p, err := freeEngine(t).Pipeline(o)
		if err != nil {
			t.Fatal(err)
		}
		leaks := devicetest.NoLeaks(t, devices())
		var all sync.WaitGroup
		for _, at := range []string{"before", "first", "middle", "last"} {
			for _, fault := range traintest.Faults {
				victim = (victim + 1) % p.Ranks()
				c := faultCase{p, rows, at, fault, victim, t.TempDir()}
				all.Go(func() {
					if err := fault.Patiently(c.play); err != nil {
						t.Errorf("%s: rank %d %s, %s: %v", form.kind, c.victim, c.fault, c.at, err)
					}
				})
			}
		}
		all.Wait()
		leaks()
	}
}

// TestIdle has a rank join and make no step: the others learn which one it is, within the group's time.
func TestIdle(t *testing.T) {
	const m, ranks = 4, 3
	o := pipeline.Options{Schedule: newSchedule(t, schedule.KindZBH1, ranks, m, 0)}
	batches := toyBatches(m * microRows)
	training{engine: freeEngine(t), options: o, steps: 1, batches: batches}.run(t) // which compiles
	p, err := freeEngine(t).Pipeline(o)
	if err != nil {
		t.Fatal(err)
	}
	idle := func(idler int) {
		errs := make([]error, ranks)
		var others sync.WaitGroup
		others.Add(ranks - 1)
		_ = group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			r, err := p.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			defer r.Close()
			if g.Rank() == idler {
				others.Wait()
				return nil
			}
			defer others.Done()
			_, errs[g.Rank()] = steady(ctx, r, 1, batches)
			return errs[g.Rank()]
		}, group.Timeout(2*time.Second))
		for r, err := range errs {
			var failure *group.Failure
			if r != idler && (!errors.As(err, &failure) || failure.Rank != idler) {
				t.Errorf("rank %d is idle: rank %d: %v", idler, r, err)
			}
		}
	}
	var all sync.WaitGroup
	for idler := range ranks {
		all.Go(func() { idle(idler) })
	}
	all.Wait()
}
