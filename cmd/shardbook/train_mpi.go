package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
)

// Ways to have ranks.
const (
	engineLocal = "local" // all in this process
	engineMPI   = "mpi"   // each in a process of its own
)

// crew is this process among those that mpirun started to train together, each with one rank on its one device; nil is a process
// that trains alone. Besides what ranks call in their group, processes tell each other how far they are and what went wrong, in
// groups of their own, since a failure ends the group that it shows in.
type crew struct {
	group.Group             // of the ranks
	talk        group.Group // what processes agree on, in the order of the run
	ends        group.Group // the roll call: see end
	hosts       []string    // by rank
	timeout     time.Duration
	ctx         context.Context         // ends when any rank has raised the alarm, with what it says
	fail        context.CancelCauseFunc // ends it here
	raise       context.CancelCauseFunc // tells all others
}

// joinCrew waits for the other processes, at most for the timeout.
func joinCrew(ctx context.Context, timeout time.Duration) (*crew, *mpi.Job, error) {
	job, err := mpi.World(mpi.Timeout(timeout))
	if errors.Is(err, mpi.ErrLate) {
		host, _ := os.Hostname()
		fmt.Fprintf(os.Stderr, "shardbook: rank %d on %s: %v\n", started("OMPI_COMM_WORLD_RANK"), host, err)
		return nil, nil, exitStatus(statusLost)
	}
	if err != nil {
		return nil, nil, beforeCrew{err}
	}
	c, err := newCrew(ctx, job, timeout)
	if err != nil {
		return nil, nil, beforeCrew{err}
	}
	return c, job, nil
}

// newCrew makes this process's part of a crew of the ranks of a group, whose calls wait for the timeout. It is a collective call.
func newCrew(ctx context.Context, g group.Group, timeout time.Duration) (*crew, error) {
	ctx = context.WithoutCancel(ctx) // whoever is interrupted ends with the others
	c := &crew{Group: g, timeout: timeout}
	var alarm group.Group
	for _, own := range []*group.Group{&c.talk, &c.ends, &alarm} {
		var err error
		if *own, err = g.Split(ctx, 0, g.Rank()); err != nil {
			return nil, err
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "a host without a name"
	}
	if c.hosts, err = c.tell(ctx, host); err != nil {
		return nil, err
	}
	c.ctx, c.fail = context.WithCancelCause(ctx)
	c.raise = c.fail
	if n := g.Size(); n > 1 {
		c.listen(ctx, alarm, (g.Rank()+1)%n)
	}
	return c, nil
}

// listen waits in the background for a message that no rank sends. Whoever gives up waiting fails the group, and so tells all at
// once, whatever call their ranks are in.
func (c *crew) listen(ctx context.Context, alarm group.Group, from int) {
	ctx, c.raise = context.WithCancelCause(ctx)
	ctx, stop := context.WithDeadline(ctx, time.Now().Add(math.MaxInt64)) // or the group's own timeout would end it
	wait := alarm.Start(ctx, group.RecvCall(make([]uint8, 1), from))
	go func() {
		defer stop()
		c.fail(wait.Wait())
	}()
}

// first says whether this process is the one that prints and writes what is of the whole run.
func (c *crew) first() bool { return c == nil || c.Rank() == 0 }

// slack is how long the first process may wait for something before the others would take it for lost.
func (c *crew) slack() time.Duration {
	if c == nil {
		return 0
	}
	return c.timeout / 2
}

// groups are the views of the ranks that this process has, of n in all.
func (c *crew) groups(n int) ([]group.Group, error) {
	if c == nil {
		return group.New(n, group.Timeout(patience))
	}
	return []group.Group{c.Group}, nil
}

// context is what the ranks' calls end with.
func (c *crew) context(ctx context.Context) context.Context {
	if c == nil {
		return context.WithoutCancel(ctx) // what is interrupted ends a step first
	}
	return c.ctx
}

// tell gives every process each one's text, in the order of the ranks. It is a collective call.
func (c *crew) tell(ctx context.Context, text string) ([]string, error) {
	told, err := group.Exchange(ctx, c.talk, []byte(text))
	texts := make([]string, len(told))
	for rank, t := range told {
		texts[rank] = string(t)
	}
	return texts, err
}

// shared gives every process each one's value, in the order of the ranks. It is a collective call; alone there is only the own.
func shared[T any](c *crew, own T) ([]T, error) {
	if c == nil {
		return []T{own}, nil
	}
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := c.tell(c.ctx, string(text))
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal([]byte(text), &all[rank]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// follow waits until the first process has ended what it does alone, which it tells with [crew.tick].
func (c *crew) follow() error {
	for more := []uint8{1}; more[0] == 1; {
		if err := group.Broadcast(c.ctx, c.talk, more, 0); err != nil {
			return err
		}
	}
	return nil
}

// tick tells the others that the first process still does what it does alone, or has ended it: or they would take it for lost.
func (c *crew) tick(more bool) error {
	if c == nil {
		return nil
	}
	told := []uint8{0}
	if more {
		told[0] = 1
	}
	return group.Broadcast(c.ctx, c.talk, told, 0)
}
