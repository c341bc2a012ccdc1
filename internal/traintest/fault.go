package traintest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Fault is what goes wrong with a rank.
type Fault string

const (
	Fails   Fault = "returns an error"
	Panics  Fault = "panics"
	Stalls  Fault = "stalls"
	Cancels Fault = "is cancelled"
)

// Faults are all of them.
var Faults = []Fault{Fails, Panics, Stalls, Cancels}

// ErrLuck is the error of a rank that fails.
var ErrLuck = errors.New("out of luck")

// boom is what a rank panics with.
const boom = "boom"

// Strike makes the fault happen: a rank that stalls calls wait, and one that is cancelled calls cancel.
func (f Fault) Strike(wait, cancel func()) error {
	switch f {
	case Fails:
		return ErrLuck
	case Panics:
		panic(boom)
	case Stalls:
		wait()
	case Cancels:
		cancel()
	}
	return nil
}

// Trap is a rank's view of a group and of its sub-groups, in which the fault happens in one call.
type Trap struct {
	group.Group
	*trigger
}

type trigger struct {
	strike func() error
	calls  atomic.Int64 // so far
	at     atomic.Int64 // the number of the call that strikes, from 1; none at 0
}

// NewTrap sets a trap, which is not armed yet.
func NewTrap(g group.Group, strike func() error) Trap { return Trap{g, &trigger{strike: strike}} }

// Calls is the number of calls so far.
func (t Trap) Calls() int64 { return t.calls.Load() }

// Arm has the first, the middle or the last of the next calls strike; with any other word, none.
func (t Trap) Arm(at string, calls int64) {
	n, ok := map[string]int64{"first": 0, "middle": calls / 2, "last": calls - 1}[at]
	if ok {
		t.at.Store(t.Calls() + n + 1)
	}
}

// pace is the time that a rank takes before each call, unless its context has ended.
const pace = time.Millisecond

func (t Trap) pull(ctx context.Context) error {
	if ctx.Err() == nil {
		time.Sleep(pace)
	}
	if t.calls.Add(1) == t.at.Load() {
		return t.strike()
	}
	return nil
}

// Do implements [group.Group].
func (t Trap) Do(ctx context.Context, call group.Call) error {
	if err := t.pull(ctx); err != nil {
		return err
	}
	return t.Group.Do(ctx, call)
}

// Start implements [group.Group].
func (t Trap) Start(ctx context.Context, call group.Call) *group.Pending {
	if err := t.pull(ctx); err != nil {
		return group.NewPending(func() error { return err })
	}
	return t.Group.Start(ctx, call)
}

// Split implements [group.Group].
func (t Trap) Split(ctx context.Context, color, key int) (group.Group, error) {
	of, err := t.Group.Split(ctx, color, key)
	if of == nil || err != nil {
		return nil, err
	}
	return Trap{of, t.trigger}, nil
}
