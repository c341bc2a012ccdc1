package zero_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// The tests of faults and of what comes after them share three devices and one engine for each form: most of their time is
// the compiler's.
const three = 3

var (
	threeDevices = sync.OnceValue(func() *xla.Backend {
		backend, err := xla.Open(xla.Devices(three), xla.Plugin("cpu"))
		if err != nil {
			panic(err)
		}
		return backend
	})
	toyRecipe   = train.Recipe{Model: toy.Model(true), Rule: optim.AdamW(1e-2)}
	toyForms    = []zero.Options{{Stage: 1}, {Stage: 2, Accumulate: 2}, {Stage: 3, Prefetch: 1}}
	toyEngines  = map[int]*zero.Engine{} // by stage
	faultRows   = 2 * 2 * three
	faultSource = toyBatches(faultRows)
)

// toyEngine returns the engine of a form.
func toyEngine(t *testing.T, o zero.Options) *zero.Engine {
	t.Helper()
	if toyEngines[o.Stage] == nil {
		e, err := zero.NewEngine(threeDevices(), toyRecipe, o)
		if err != nil {
			t.Fatal(err)
		}
		toyEngines[o.Stage] = e
	}
	return toyEngines[o.Stage]
}

// warm returns the engine of a form, whose programs are compiled.
func warm(t *testing.T, o zero.Options) *zero.Engine {
	t.Helper()
	e := toyEngine(t, o)
	ranks(t, e, three, 1, faultSource)
	return e
}

// faultCase is a fault in the second of some steps.
type faultCase struct {
	engine *zero.Engine
	at     string // before the step, or in its first, middle or last call of the group
	fault  traintest.Fault
	victim int
	saved  string // a folder for what nobody may save
}

// play trains with the fault, and says what is wrong with what the ranks get.
func (c faultCase) play(patience time.Duration) error {
	var survivors sync.WaitGroup
	survivors.Add(three - 1)
	all, errs := make([]*zero.Rank, three), make([]error, three)
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		strike := func() error { return c.fault.Strike(survivors.Wait, cancel) }
		view := traintest.NewTrap(g, strike)
		if all[me], err = c.engine.Join(ctx, view, me); err != nil {
			return err
		}
		for step := range 3 {
			before := view.Calls()
			if me == c.victim && step == 1 {
				if c.at == "before" {
					err = strike()
				}
				if err != nil {
					return err
				}
			}
			inputs, targets := faultSource(step)
			if _, err := all[me].Step(own, inputs, targets); err != nil {
				return err
			}
			if me == c.victim && step == 0 {
				view.Arm(c.at, view.Calls()-before)
			}
		}
		return nil
	}
	err := group.Run(context.Background(), three, func(ctx context.Context, g group.Group) error {
		err := train(ctx, g)
		errs[g.Rank()] = err
		if g.Rank() != c.victim {
			survivors.Done()
		}
		return err
	}, group.Timeout(patience))
	if err == nil {
		err = errors.New("no error at all")
	} else {
		err = nil
	}
	for r, rank := range all {
		if r != c.victim {
			if e := c.names(errs[r]); e != nil {
				err = errors.Join(err, fmt.Errorf("rank %d: %w", r, e))
			}
		}
		if e := c.lost(rank); e != nil {
			err = errors.Join(err, fmt.Errorf("rank %d, then: %w", r, e))
		}
	}
	return err
}

// names says what is wrong with the error of a rank that is not at fault.
func (c faultCase) names(err error) error {
	var failure *group.Failure
	if !errors.As(err, &failure) {
		return fmt.Errorf("%v: that is no *group.Failure", err)
	}
	if failure.Rank != c.victim {
		return fmt.Errorf("%v: that names rank %d", err, failure.Rank)
	}
	return nil
}

// lost says what is wrong with what a rank answers when it is lost, and closes it, twice.
func (c faultCase) lost(rank *zero.Rank) error {
	ctx := context.Background()
	inputs, targets := faultSource(1)
	steps := rank.Steps()
	_, step := rank.Step(ctx, inputs, targets) // who failed before it is lost now
	_, params := rank.Params(ctx)
	save, load := rank.Save(ctx, c.saved, nil, 1), rank.Load(ctx, nil)
	errs := []error{traintest.Lost(map[string]error{"Step": step, "Params": params, "Save": save, "Load": load})}
	if rank.Steps() != steps {
		errs = append(errs, fmt.Errorf("a lost rank has made %d steps, before %d", rank.Steps(), steps))
	}
	return errors.Join(append(errs, rank.Close(), rank.Close())...)
}
