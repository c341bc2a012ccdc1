package group_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

const moment = 100 * time.Millisecond

// failureOf runs ranks, of which one may be missing, and returns what rank 0 got.
func failureOf(t *testing.T, ranks, missing int, f func(ctx context.Context, g group.Group) error,
	options ...group.Option) *group.Failure {
	t.Helper()
	var got error
	stay, leave := context.WithCancel(context.Background())
	err := group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		if g.Rank() == missing {
			<-stay.Done() // there, but it calls nothing
			return nil
		}
		err := f(ctx, g)
		if g.Rank() == 0 {
			got = err
			leave()
		}
		return err
	}, options...)
	leave()
	var failure *group.Failure
	if err == nil || !errors.As(got, &failure) {
		t.Fatalf("rank 0 got %v, Run %v", got, err)
	}
	return failure
}

// With one deadline over several sends, the rank that the first of them waits for is late.
func TestDeadlineInTheQueue(t *testing.T) {
	for range 10 {
		f := failureOf(t, 2, 1, func(ctx context.Context, g group.Group) error {
			ctx, cancel := context.WithTimeout(ctx, moment)
			defer cancel()
			x := make([]float32, 3)
			return group.WaitAll(g.Start(ctx, group.SendCall(x, 1)), g.Start(ctx, group.SendCall(x, 1)))
		})
		if f.Rank != 1 || f.Seq != 1 || !strings.Contains(f.Reason, "(it has made no call)") {
			t.Fatalf("%v: want rank 1 in send #1", f)
		}
	}
}

// Around a ring, whoever runs out of time first names the rank that all wait for in the end, and not its own neighbour.
func TestBlameGoesDownTheLine(t *testing.T) {
	ring := must.Get(plan.New(plan.AllReduce, plan.Ring, 8))(t)
	f := failureOf(t, 8, 2, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 0 {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, 2*moment)
			defer cancel()
		}
		return group.RunPlan(ctx, g, ring, make([]float32, 64), group.Sum)
	})
	if f.Rank != 2 || !strings.Contains(f.Reason, "holds up rank") {
		t.Errorf("%v: want rank 2, which holds up another", f)
	}
}

// A call that is cancelled is cancelled: a rank that returned as it should is not to blame.
func TestCancelledBesideOneThatReturned(t *testing.T) {
	f := failureOf(t, 3, -1, func(ctx context.Context, g group.Group) error {
		switch g.Rank() {
		case 2:
			return nil
		case 1:
			<-ctx.Done()
			return nil
		}
		over, stop := context.WithCancel(ctx)
		defer stop()
		time.AfterFunc(moment, stop)
		return group.Recv(over, g, make([]float32, 1), 1)
	})
	if f.Rank != 0 || !errors.Is(f, context.Canceled) {
		t.Errorf("%v (%v): want rank 0's own cancellation", f, f.Err)
	}
}

// A rank that is gone is gone from groups that were split off others, also when nobody holds those any more.
func TestGoneFromGroupsOfGroups(t *testing.T) {
	began := time.Now()
	err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		a, err := g.Split(ctx, 3, 0)
		if err != nil {
			return err
		}
		b, err := a.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		if _, err := g.Split(ctx, 0, 0); err != nil {
			return err
		}
		runtime.GC()
		runtime.GC()
		if err := group.Barrier(ctx, g); err != nil {
			return err
		}
		if g.Rank() == 1 {
			return nil
		}
		return group.Barrier(ctx, b)
	}, group.Timeout(20*time.Second))
	want := "rank 0: barrier #1 of split #1 color 3, split #1 color 0: rank 1 has returned"
	if err == nil || err.Error() != want || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v, want %s", time.Since(began), err, want)
	}
}
