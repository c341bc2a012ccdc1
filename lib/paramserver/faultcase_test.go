package paramserver_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The tests of faults and of what comes after them share three devices and one engine for each form: most of their time is
// the compiler's.
const world = 3

var (
	threeDevices = sync.OnceValue(func() *xla.Backend {
		backend, err := xla.Open(xla.Devices(world), xla.Plugin("cpu"))
		if err != nil {
			panic(err)
		}
		return backend
	})
	toyRecipe = train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(1e-2)}
	toyForms  = map[string]paramserver.Options{
		"servers":       {BucketBytes: 160},
		"micro-batches": {BucketBytes: 160, Accumulate: world, Servers: 2},
		"async":         {BucketBytes: 160, Async: true},
	}
	toyEngines = map[string]*paramserver.Engine{}
)

// toyEngine returns the engine of a form.
func toyEngine(t *testing.T, form string) *paramserver.Engine {
	t.Helper()
	if toyEngines[form] == nil {
		e, err := paramserver.NewEngine(threeDevices(), toyRecipe, toyForms[form])
		if err != nil {
			t.Fatal(err)
		}
		toyEngines[form] = e
	}
	return toyEngines[form]
}

// warm returns the engine of a form, whose programs are compiled.
func warm(t *testing.T, form string) *paramserver.Engine {
	t.Helper()
	e := toyEngine(t, form)
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err == nil {
			_, err = steady(ctx, g, rank, 2, toyRows(form, world))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

// toyRows are batches of two rows for each micro-batch.
func toyRows(form string, ranks int) source {
	return toySource(2 * ranks * max(1, toyForms[form].Accumulate))
}

// trap is a rank's view of a group in which, once it is armed, a call fails: the n-th, from 0, of those that it is set for.
type trap struct {
	group.Group
	pace   time.Duration // before each call
	strike func() error
	left   atomic.Int64 // calls until it springs; it never does at 0
	on     func(call group.Call) bool
}

func (t *trap) arm(n int) { t.left.Store(int64(n) + 1) }

func (t *trap) Do(ctx context.Context, call group.Call) error {
	if ctx.Err() == nil {
		time.Sleep(t.pace)
	}
	if t.on(call) && t.left.Add(-1) == 0 {
		if err := t.strike(); err != nil {
			return err
		}
	}
	return t.Group.Do(ctx, call)
}

// shares says whether a call announces to a server a bucket, which follows.
func shares(call group.Call) bool {
	return call.Kind == group.KindSend && call.Type == group.Int64 && *(*int64)(call.In.Data) == 0
}

// faultCase is a fault in the second of some steps.
type faultCase struct {
	form   string
	engine *paramserver.Engine
	at     string // before or after the step, or in it, where the first or the last bucket is shared
	fault  traintest.Fault
	victim int
}

// play trains with the fault, and says what is wrong with what the other ranks get. It is for synctest's clock, as traintest's is.
func (c faultCase) play() error {
	var survivors sync.WaitGroup
	survivors.Add(world - 1)
	strike := func() error { return c.fault.Strike(survivors.Wait, nil) }
	batches := toyRows(c.form, world)
	groups, ranks, errs := make([]group.Group, world), make([]*paramserver.Rank, world), make([]error, world)
	defer func() {
		for _, rank := range ranks {
			if rank != nil {
				rank.Close() // the error of one that was not lost before is the group's
			}
		}
	}()
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		groups[me] = g
		view := &trap{Group: g, pace: time.Millisecond, on: shares, strike: strike}
		rank, err := c.engine.Join(ctx, view, me)
		if err != nil {
			return err
		}
		ranks[me] = rank
		for step := range 3 {
			inputs, targets, err := batches(step)
			if err != nil {
				return err
			}
			if me == c.victim && step == 1 {
				switch c.at {
				case "before":
					if err := strike(); err != nil {
						return err
					}
				case "first":
					view.arm(0)
				case "last":
					view.arm(c.last())
				}
			}
			m, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			if me == c.victim && step == 1 && c.at == "after" {
				if err := strike(); err != nil {
					return err
				}
			}
			if _, err := paramserver.Mean(ctx, g, m.Loss); err != nil { // where asynchronous ranks notice
				return err
			}
		}
		return nil
	}
	err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		err := train(ctx, g)
		errs[g.Rank()] = err
		if g.Rank() != c.victim {
			survivors.Done()
		}
		return err
	}, group.Timeout(time.Minute))
	if err == nil {
		return errors.New("no error at all")
	}
	for r, g := range groups {
		if r == c.victim {
			continue
		}
		if err := c.names(errs[r]); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
		if err := c.names(group.Barrier(context.Background(), g)); err != nil {
			return fmt.Errorf("rank %d, then: %w", r, err)
		}
	}
	return nil
}

// names says what is wrong with another rank's error: it has the failure of a group, or what the victim itself has returned, which
// ends the context in which the others compute.
func (c faultCase) names(err error) error {
	own := regexp.MustCompile(fmt.Sprintf("rank %d: (%v|panic: boom)", c.victim, traintest.ErrLuck))
	if err != nil && c.fault != traintest.Stalls && own.MatchString(err.Error()) {
		return nil
	}
	var failure *group.Failure
	if !errors.As(err, &failure) {
		return fmt.Errorf("%v: that is no *group.Failure", err)
	}
	if failure.Rank == c.victim {
		return nil
	}
	// Without waiting for all, a rank may wait for an answer of the one that stalls, and so be late itself: then that is said of it.
	waits := fmt.Sprintf(" from rank %d)), nor did ranks [%[1]d]", c.victim)
	if toyForms[c.form].Async && c.fault == traintest.Stalls && strings.Contains(failure.Reason, waits) {
		return nil
	}
	return fmt.Errorf("%v: that names rank %d", err, failure.Rank)
}

// last is the number of the last bucket that the rank pushes in a step: of those that are not its own.
func (c faultCase) last() int {
	servers := toyForms[c.form].Servers
	if servers == 0 {
		servers = world
	}
	last := -1
	for b := range c.engine.Buckets() {
		if b%servers != c.victim {
			last++
		}
	}
	return last
}
