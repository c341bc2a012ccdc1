//go:build mpi

package mpi

// #include <sched.h>
// #include <unistd.h>
import "C"

import (
	"context"
	"runtime"
	"time"
)

// A rank that waits polls MPI, which moves data only then. At first it only yields its core in between. Later it sleeps
// for a fraction of the time it has waited, so that it neither keeps a core busy nor notices much too late.
const (
	spinMeeting = time.Millisecond // while it waits for another rank, which may be late
	spinMoving  = time.Second      // while all ranks are there and data moves
	sleepPart   = 32
	minSleep    = 50 * time.Microsecond
	maxSleep    = 4 * time.Millisecond
)

// bound is how long a call may take.
type bound struct {
	ctx     context.Context
	started time.Time
	until   time.Time
}

// bounded is the context's deadline, or the timeout from now where it has none.
func bounded(ctx context.Context, timeout time.Duration) bound {
	b := bound{ctx: ctx, started: time.Now()}
	var has bool
	if b.until, has = ctx.Deadline(); !has {
		b.until = b.started.Add(timeout)
	}
	return b
}

// length is about the time from the call's start to its deadline.
func (b bound) length() time.Duration {
	d := b.until.Sub(b.started)
	if d < 500*time.Millisecond {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// err is not nil when the time is over.
func (b bound) err(now time.Time) error {
	if now.After(b.until) {
		return context.DeadlineExceeded
	}
	return b.ctx.Err()
}

// await calls ready until it returns true or an error, or the time is over. It does not
// sleep before it has waited for the time spin.
func (b bound) await(spin time.Duration, ready func() (bool, error)) error {
	started := time.Now()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		now := time.Now()
		if err := b.err(now); err != nil {
			return err
		}
		runtime.Gosched()
		C.sched_yield() // there may be more ranks than cores
		if waited := now.Sub(started); waited > spin {
			sleep(min(max(waited/sleepPart, minSleep), maxSleep))
		}
	}
}

// sleep is C's: time.Sleep of less than a millisecond takes more than one.
func sleep(d time.Duration) { C.usleep(C.useconds_t(d.Microseconds())) }
