package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// What goes wrong with workers alone.
const (
	exits    traintest.Fault = "ends its goroutine"
	obedient traintest.Fault = "stalls until the context ends"
)

func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q", name, err, want)
	}
}

// faulty is a worker that something goes wrong with at one action.
type faulty struct {
	*instant
	at     schedule.Action
	strike func(ctx context.Context) error
}

func (w faulty) Compute(ctx context.Context, a schedule.Action, version int, in pipeline.Message) (pipeline.Message, error) {
	if a == w.at {
		if err := w.strike(ctx); err != nil {
			return nil, errors.Join(err, free(in))
		}
	}
	return w.instant.Compute(ctx, a, version, in)
}

func free(m pipeline.Message) error {
	if m == nil {
		return nil
	}
	return m.Free()
}

// playFault is a fault at an action of a rank.
type playFault struct {
	player *pipeline.Player
	fault  traintest.Fault
	victim int
	at     schedule.Action
}

// play says what is wrong with what the ranks get. Only what stalls has anyone wait for its time.
func (c playFault) play() error {
	ranks := len(c.player.Schedule.Ranks)
	var others sync.WaitGroup
	others.Add(ranks - 1)
	options := pipeline.PlayOptions{First: 5}
	if c.fault == obedient || c.fault == traintest.Stalls {
		options.Timeout = time.Second
	}
	strike := func(ctx context.Context) error {
		switch c.fault {
		case exits:
			runtime.Goexit()
		case obedient:
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return c.fault.Strike(others.Wait, nil)
	}
	count, errs := &letters{}, make([]error, ranks)
	_ = group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		me := g.Rank()
		w := faulty{instant: &instant{letters: count, stages: c.player.Schedule.Stages}}
		if me == c.victim {
			w.at, w.strike = c.at, strike
		} else {
			defer others.Done()
		}
		errs[me] = errors.New("it did not return")
		errs[me] = c.player.Play(ctx, g, w, options)
		if errs[me] == nil { // it has come to its end, and goes on to what follows
			errs[me] = group.Barrier(ctx, g)
		}
		return errs[me]
	}, group.Timeout(time.Minute))
	want := fmt.Sprintf("rank %d, in the %s pass of stage %d for micro-batch %d", 5+c.victim, c.at.Pass, c.at.Stage, c.at.Microbatch)
	if c.fault == exits {
		errs[c.victim], want = errors.New("its goroutine was ended"), "its goroutine was ended" // all that the group itself knows
	}
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("rank %d: %v, want %q", r, err, want)
		}
		if c.fault == traintest.Fails && r == c.victim && !errors.Is(err, traintest.ErrLuck) {
			return fmt.Errorf("rank %d: %v does not wrap the worker's", r, err)
		}
	}
	if c.fault != traintest.Panics && c.fault != exits && (count.alive != 0 || count.twice != 0) {
		return fmt.Errorf("%d messages are not freed, %d were freed twice", count.alive, count.twice)
	}
	return nil
}

// TestPlayFaults has a worker fail, panic, end its goroutine or stall, in each kind of pass on each rank. Every rank
// gets an error, of the play or, if it was through with it, of its next call, that says which rank it was, and in
// which pass of which stage for which micro-batch. Nothing is left behind. The clock is synctest's, which moves only
// when all ranks wait: none but the one that stalls is late.
func TestPlayFaults(t *testing.T) {
	for _, kind := range []schedule.Kind{schedule.Kind1F1B, schedule.KindZBV, schedule.KindDualPipe, schedule.KindPipeDream} {
		ranks := map[bool]int{false: 3, true: 2}[kind == schedule.KindDualPipe]
		player, err := pipeline.NewPlayer(newSchedule(t, kind, ranks, 4, 0))
		if err != nil {
			t.Fatal(err)
		}
		for victim, list := range player.Schedule.Ranks {
			for _, pass := range []schedule.Pass{schedule.Forward, schedule.Backward, schedule.InputGrad, schedule.WeightGrad, schedule.Update} {
				at, there := secondOf(list, pass)
				if !there {
					continue
				}
				for _, fault := range []traintest.Fault{traintest.Fails, traintest.Panics, exits, obedient, traintest.Stalls} {
					synctest.Test(t, func(t *testing.T) {
						if err := (playFault{player, fault, victim, at}).play(); err != nil {
							t.Errorf("%s: rank %d %s at %v: %v", kind, victim, fault, at, err)
						}
					})
				}
			}
		}
	}
}

// failing is a rank's view of a group in which one of the calls that it starts fails, after a moment, and nobody
// else learns of it. No call that is behind it on its way comes to an end.
type failing struct {
	group.Group
	left   int // calls until then
	failed group.Call
}

func (f *failing) Start(ctx context.Context, call group.Call) *group.Pending {
	f.left--
	switch {
	case f.left == 0:
		f.failed = call
		return group.NewPending(func() error {
			time.Sleep(time.Second) // by then the rank does something else, or waits for what depends on this call
			return traintest.ErrLuck
		})
	case f.left < 0 && call.Kind == f.failed.Kind && call.Peer == f.failed.Peer:
		return group.NewPending(func() error {
			<-ctx.Done()
			return ctx.Err()
		})
	}
	return f.Group.Start(ctx, call)
}

// TestPlayLostMessage has each send and each receive of a rank fail when the rank is past it, where the group itself
// does not. No rank waits for the group's timeout, and each gets an error that names the rank.
func TestPlayLostMessage(t *testing.T) {
	const ranks = 3
	player, err := pipeline.NewPlayer(newSchedule(t, schedule.Kind1F1B, ranks, 4, 0))
	if err != nil {
		t.Fatal(err)
	}
	programs, err := player.Schedule.Programs()
	if err != nil {
		t.Fatal(err)
	}
	for victim, ops := range programs {
		ops = slices.DeleteFunc(slices.Clone(ops), func(op schedule.Op) bool { return op.Kind == schedule.Compute })
		for n, op := range ops {
			synctest.Test(t, func(t *testing.T) {
				count, errs, begun := &letters{}, make([]error, ranks), time.Now()
				_ = group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
					me := g.Rank()
					if me == victim {
						g = &failing{Group: g, left: n + 1}
					}
					errs[me] = player.Play(ctx, g, &instant{letters: count, stages: ranks}, pipeline.PlayOptions{Timeout: time.Hour})
					if errs[me] == nil {
						errs[me] = group.Barrier(ctx, g)
					}
					return errs[me]
				}, group.Timeout(time.Hour))
				if waited := time.Since(begun); waited > time.Second {
					t.Errorf("rank %d, %v: the ranks waited for %v", victim, op, waited)
				}
				for r, err := range errs {
					checkError(t, fmt.Sprintf("rank %d, %v: rank %d", victim, op, r), err, fmt.Sprint("rank ", victim))
				}
				if !errors.Is(errs[victim], traintest.ErrLuck) {
					t.Errorf("rank %d, %v: %v does not wrap the call's error", victim, op, errs[victim])
				}
				if count.alive != 0 || count.twice != 0 {
					t.Errorf("rank %d, %v: %d messages are not freed, %d were freed twice", victim, op, count.alive, count.twice)
				}
			})
		}
	}
}

// secondOf is the second action of a rank's with a pass, or the only one.
func secondOf(list []schedule.Action, pass schedule.Pass) (at schedule.Action, ok bool) {
	count := 0
	for _, a := range list {
		if a.Pass == pass && count < 2 {
			at, ok = a, true
			count++
		}
	}
	return at, ok
}
