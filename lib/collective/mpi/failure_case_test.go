//go:build mpi

package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

func init() { cases["failures"] = failures }

// failureCase is what four ranks do and the failure that each of them must get.
type failureCase struct {
	name string
	play func(ctx context.Context, g group.Group) error
	want string
}

// soon is a context that ends after a moment, for a rank that waits in vain.
func soon(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, time.Second/2)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// odd makes one call on rank 2 and another on the others.
func odd(odd, others group.Call) func(context.Context, group.Group) error {
	return func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			return g.Do(ctx, odd)
		}
		return g.Do(ctx, others)
	}
}

var (
	four, five = make([]float32, 4), make([]float32, 5)
	sumOfFour  = group.AllReduceCall(four, group.Sum)
)

var failureCases = []failureCase{
	{"late", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			time.Sleep(3 * time.Second / 2)
			return group.Barrier(ctx, g)
		}
		return group.Barrier(soon(ctx), g)
	}, "barrier #1: rank 2 did not arrive within 300ms (it has made no call here)"},

	{"late, two", func(ctx context.Context, g group.Group) error {
		if err := g.Do(ctx, sumOfFour); err != nil {
			return err
		}
		if g.Rank() >= 2 {
			time.Sleep(3 * time.Second / 2)
		}
		return group.Barrier(soon(ctx), g)
	}, "barrier #2: rank 2 did not arrive within 300ms (its last call here was all-reduce #1 (sum of 4 float32)), nor did ranks [3]"},

	{"another operation", odd(group.BroadcastCall(four, 1), sumOfFour),
		"all-reduce #1: rank 2 called broadcast (4 float32 from rank 1) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another length", odd(group.AllReduceCall(five, group.Sum), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (sum of 5 float32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another type", odd(group.AllReduceCall(make([]int32, 4), group.Sum), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (sum of 4 int32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another reduction", odd(group.AllReduceCall(four, group.Max), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (max of 4 float32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another root", odd(group.BroadcastCall(four, 1), group.BroadcastCall(four, 3)),
		"broadcast #1: rank 2 called broadcast (4 float32 from rank 1) where rank 0 called broadcast (4 float32 from rank 3)"},

	{"out of order", func(ctx context.Context, g group.Group) error {
		first, second := sumOfFour, group.BarrierCall()
		if g.Rank() == 2 {
			first, second = second, first
		}
		return errors.Join(group.WaitAll(g.Start(ctx, first), g.Start(ctx, second)))
	}, "all-reduce #1: rank 2 called barrier where rank 0 called all-reduce (sum of 4 float32)"},

	{"parts that do not fit", func(ctx context.Context, g group.Group) error {
		in, out := []int{1, 1, 1, 1}, []int{1, 1, 1, 1}
		if g.Rank() == 2 {
			in[1] = 2
		}
		return group.AllToAllV(ctx, g, make([]uint8, in[1]+3), make([]uint8, 4), in, out)
	}, "all-to-all #1: rank 2 has 2 elements for rank 1, which expects 1"},

	{"what cannot be", odd(group.AllReduceCall(make([]int32, 4), group.Mean), sumOfFour),
		"all-reduce #1: rank 2 made an invalid call: the mean of int32 is not a whole number: take the sum, or convert to a float type"},

	{"cancelled", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 3 {
			time.Sleep(600 * time.Millisecond)
		}
		if g.Rank() == 2 {
			var cancel func()
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(300*time.Millisecond, cancel)
		}
		return group.Barrier(ctx, g)
	}, "barrier #1: rank 2 gave up: context canceled"},

	{"a message of another length", func(ctx context.Context, g group.Group) error {
		switch g.Rank() {
		case 2:
			return errors.Join(group.Send(ctx, g, four, 1), group.Barrier(ctx, g))
		case 1:
			return group.Recv(ctx, g, five, 2)
		}
		return group.Barrier(ctx, g)
	}, "receive #1: rank 1 receives 5 float32 where rank 2 sends 4 float32"},

	{"no message", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 1 {
			return group.Recv(soon(ctx), g, five, 2)
		}
		return group.Barrier(ctx, g)
	}, "receive #1: rank 2 did not send to rank 1 within 300ms (its last call here was barrier #1)"},

	{"no receiver", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 1 {
			return group.Send(soon(ctx), g, make([]float32, 1<<20), 2)
		}
		return group.Barrier(ctx, g)
	}, "send #1: rank 2 did not receive from rank 1 within 300ms (its last call here was barrier #1)"},

	{"late, while calls queue", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			time.Sleep(3 * time.Second / 2)
			return group.Barrier(ctx, g)
		}
		ctx = soon(ctx)
		return group.WaitAll(g.Start(ctx, group.BarrierCall()), g.Start(ctx, sumOfFour))
	}, "barrier #1: rank 2 did not arrive within 500ms (it has made no call here)"},

	{"over before it begins", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			over, cancel := context.WithCancel(ctx)
			cancel()
			return group.Barrier(over, g)
		}
		return group.Barrier(ctx, g)
	}, "barrier #1: rank 2 gave up: context canceled"},

	{"cancelled in the queue", func(ctx context.Context, g group.Group) error {
		if g.Rank() != 2 {
			time.Sleep(600 * time.Millisecond)
			return group.Barrier(ctx, g)
		}
		short, cancel := context.WithCancel(ctx)
		time.AfterFunc(300*time.Millisecond, cancel)
		return group.WaitAll(g.Start(ctx, group.BarrierCall()), g.Start(short, sumOfFour))
	}, "all-reduce #2: rank 2 gave up: context canceled"},
}

// inNoGroup is what a failure says without the name of its group.
func inNoGroup(f group.Failure) string {
	f.Group = ""
	return f.Error()
}

// failures plays each case in a group of its own, as a failure ends the group.
func failures(ctx context.Context, r *rank) error {
	goroutines := runtime.NumGoroutine()
	for i, c := range failureCases {
		name := fmt.Sprintf("split #%d color 0", 2*i+1) // a barrier comes after each
		g, err := r.Split(ctx, 0, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		began := time.Now()
		first := c.play(ctx, g)
		took := time.Since(began)
		again := group.Barrier(ctx, g)
		var failure *group.Failure
		switch {
		case !errors.As(first, &failure) || failure.Group != name || !alike(inNoGroup(*failure), c.want):
			return fmt.Errorf("%s: rank %d gets the error %q, want %q", c.name, r.Rank(), first, c.want)
		case again != error(failure):
			return fmt.Errorf("%s: the next call gets the error %q, want the same failure", c.name, again)
		case took > 5*time.Second:
			return fmt.Errorf("%s: it took %v to fail", c.name, took)
		}
		if err := group.Barrier(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	time.Sleep(500 * time.Millisecond) // for timers of contexts
	if n := runtime.NumGoroutine(); n > goroutines {
		return fmt.Errorf("%d goroutines are left, there were %d", n, goroutines)
	}
	return nil
}
