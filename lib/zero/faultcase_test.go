package zero_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/toy"
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

// fault is what goes wrong with a rank.
type fault string

const (
	fails   fault = "returns an error"
	panics  fault = "panics"
	stalls  fault = "stalls"
	cancels fault = "is cancelled"
)

var errLuck = errors.New("out of luck")

// trap is a rank's view of a group in which, once it is armed, a call strikes.
type trap struct {
	group.Group
	strike func() error
	calls  atomic.Int64 // so far
	at     atomic.Int64 // the number of the call that strikes, from 1; none at 0
}

// arm has the n-th call from now on strike, from 0.
func (t *trap) arm(n int64) { t.at.Store(t.calls.Load() + n + 1) }

func (t *trap) Do(ctx context.Context, call group.Call) error {
	if t.calls.Add(1) == t.at.Load() {
		if err := t.strike(); err != nil {
			return err
		}
	}
	return t.Group.Do(ctx, call)
}

// faultCase is a fault in the second of some steps.
type faultCase struct {
	engine *zero.Engine
	at     string // before the step, or in its first, middle or last call of the group
	fault  fault
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
		strike := func() error {
			switch c.fault {
			case fails:
				return errLuck
			case panics:
				panic("boom")
			case stalls:
				survivors.Wait()
			case cancels:
				cancel()
			}
			return nil
		}
		view := &trap{Group: g, strike: strike}
		if all[me], err = c.engine.Join(ctx, view, me); err != nil {
			return err
		}
		for step := range 3 {
			before := view.calls.Load()
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
			if calls := view.calls.Load() - before; me == c.victim && step == 0 {
				switch c.at {
				case "first":
					view.arm(0)
				case "middle":
					view.arm(calls / 2)
				case "last":
					view.arm(calls - 1)
				}
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
	var errs []error
	check := func(what string, err error) {
		if err == nil || !strings.Contains(err.Error(), "join a new group and load the last checkpoint") {
			errs = append(errs, fmt.Errorf("%s of a lost rank: %v", what, err))
		}
	}
	_, err := rank.Step(ctx, inputs, targets) // who failed before it is lost now
	check("Step", err)
	_, err = rank.Params(ctx)
	check("Params", err)
	check("Save", rank.Save(ctx, c.saved, nil, 1))
	check("Load", rank.Load(ctx, nil))
	if rank.Steps() != steps {
		errs = append(errs, fmt.Errorf("a lost rank has made %d steps, before %d", rank.Steps(), steps))
	}
	return errors.Join(append(errs, rank.Close(), rank.Close())...)
}
