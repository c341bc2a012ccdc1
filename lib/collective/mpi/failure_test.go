package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

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

// odd makes one call on rank 2 and another on the others, each with its own memory.
func odd(odd, others func() group.Call) func(context.Context, group.Group) error {
	return func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			return g.Do(ctx, odd())
		}
		return g.Do(ctx, others())
	}
}

func four() []float32 { return make([]float32, 4) }

// sumOf is the sum of that many elements.
func sumOf[T group.Element](n int, op group.ReduceOp) func() group.Call {
	return func() group.Call { return group.AllReduceCall(make([]T, n), op) }
}

// copyFrom is a broadcast of four elements.
func copyFrom(root int) func() group.Call {
	return func() group.Call { return group.BroadcastCall(four(), root) }
}

var sumOfFour = sumOf[float32](4, group.Sum)

// errPatience is why a call is cancelled.
var errPatience = errors.New("out of patience")

var failureCases = []failureCase{
	{"late", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			time.Sleep(3 * time.Second / 2)
			return group.Barrier(ctx, g)
		}
		return group.Barrier(soon(ctx), g)
	}, "barrier #1: rank 2 did not arrive within 300ms (it has made no call here)"},

	{"late, two", func(ctx context.Context, g group.Group) error {
		if err := g.Do(ctx, sumOfFour()); err != nil {
			return err
		}
		if g.Rank() >= 2 {
			time.Sleep(3 * time.Second / 2)
		}
		return group.Barrier(soon(ctx), g)
	}, "barrier #2: rank 2 did not arrive within 300ms (its last call here was all-reduce #1 (sum of 4 float32)), nor did ranks [3]"},

	{"another operation", odd(copyFrom(1), sumOfFour),
		"all-reduce #1: rank 2 called broadcast (4 float32 from rank 1) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another length", odd(sumOf[float32](5, group.Sum), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (sum of 5 float32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another type", odd(sumOf[int32](4, group.Sum), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (sum of 4 int32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another reduction", odd(sumOf[float32](4, group.Max), sumOfFour),
		"all-reduce #1: rank 2 called all-reduce (max of 4 float32) where rank 0 called all-reduce (sum of 4 float32)"},

	{"another root", odd(copyFrom(1), copyFrom(3)),
		"broadcast #1: rank 2 called broadcast (4 float32 from rank 1) where rank 0 called broadcast (4 float32 from rank 3)"},

	{"out of order", func(ctx context.Context, g group.Group) error {
		first, second := sumOfFour(), group.BarrierCall()
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

	{"what cannot be", odd(sumOf[int32](4, group.Mean), sumOfFour),
		"all-reduce #1: rank 2 made an invalid call: the mean of int32 is not a whole number: take the sum, or convert to a float type"},

	{"cancelled", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 3 {
			time.Sleep(600 * time.Millisecond)
		}
		if g.Rank() == 2 {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			time.AfterFunc(300*time.Millisecond, func() { cancel(errPatience) })
		}
		return group.Barrier(ctx, g)
	}, "barrier #1: rank 2 gave up: context canceled: out of patience"},

	{"a message of another length", func(ctx context.Context, g group.Group) error {
		switch g.Rank() {
		case 2:
			return errors.Join(group.Send(ctx, g, four(), 1), group.Barrier(ctx, g))
		case 1:
			return group.Recv(ctx, g, make([]float32, 5), 2)
		}
		return group.Barrier(ctx, g)
	}, "receive #1: rank 1 receives 5 float32 where rank 2 sends 4 float32"},

	{"no message", func(ctx context.Context, g group.Group) error {
		if g.Rank() == 1 {
			return group.Recv(soon(ctx), g, make([]float32, 5), 2)
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
		return group.WaitAll(g.Start(ctx, group.BarrierCall()), g.Start(ctx, sumOfFour()))
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
		return group.WaitAll(g.Start(ctx, group.BarrierCall()), g.Start(short, sumOfFour()))
	}, "all-reduce #2: rank 2 gave up: context canceled"},
}

var whereabouts = regexp.MustCompile(` \(its? .*?\)+(,|$)`)

// known is an error without what goroutines and processes know differently well: where a rank at fault is.
func known(says string) string {
	if os.Getenv(envCase) == "" {
		return whereabouts.ReplaceAllString(says, "$1")
	}
	return says
}

// failures plays each case in a group of its own, as a failure ends the group.
func failures(ctx context.Context, world group.Group) error {
	for i, c := range failureCases {
		in := fmt.Sprintf(" of split #%d color 0: rank", 2*i+1) // a barrier comes after each
		want := strings.Replace(c.want, ": rank", in, 1)
		g, err := world.Split(ctx, 0, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		began := time.Now()
		first := c.play(ctx, g)
		took := time.Since(began)
		again := group.Barrier(ctx, g)
		var failure *group.Failure
		switch {
		case !errors.As(first, &failure) || !alike(known(failure.Error()), known(want)):
			return fmt.Errorf("%s: rank %d gets the error %q, want %q", c.name, g.Rank(), first, want)
		case again != error(failure):
			return fmt.Errorf("%s: the next call gets the error %q, want the same failure", c.name, again)
		case took > 5*time.Second:
			return fmt.Errorf("%s: it took %v to fail", c.name, took)
		}
		if err := group.Barrier(ctx, world); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}
