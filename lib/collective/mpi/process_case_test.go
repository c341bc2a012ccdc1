//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
)

// reduce reports what becomes of an all-reduce with a deadline.
func (r *rank) reduce(ctx context.Context, wait time.Duration, buf []float32, op group.ReduceOp) {
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r.report("%v", group.AllReduce(short, r, buf, op))
}

// leaves has rank 2 close the job while the others go on.
func leaves(ctx context.Context, r *rank) error {
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	if r.Rank() == 2 {
		return nil
	}
	began := time.Now()
	r.report("%v", group.AllReduce(ctx, r, make([]float32, 8), group.Sum))
	if took := time.Since(began); took > 5*time.Second {
		return fmt.Errorf("it took %v", took)
	}
	return nil
}

// killed has rank 2 die without a word.
func killed(ctx context.Context, r *rank) error {
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	if r.Rank() == 2 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	r.reduce(ctx, time.Second, make([]float32, 8), group.Sum)
	os.Exit(75)
	return nil
}

// killedAtWork has rank 2 die while the data of a call moves.
func killedAtWork(ctx context.Context, r *rank) error {
	buf := make([]float32, 1<<25)
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	if r.Rank() == 2 {
		time.AfterFunc(60*time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	}
	r.reduce(ctx, 3*time.Second, buf, group.Product)
	os.Exit(75)
	return nil
}

// cutOff has the host of rank 2 lose its network for longer than the others wait.
func cutOff(ctx context.Context, r *rank) error {
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	network := func(state string) error {
		if r.Rank() != 2 {
			return nil
		}
		return exec.Command("ip", "link", "set", "eth0", state).Run()
	}
	if err := network("down"); err != nil {
		return err
	}
	r.reduce(ctx, 2*time.Second, make([]float32, 8), group.Sum)
	if err := network("up"); err != nil {
		return err
	}
	r.exit(75)
	return nil
}

// exit ends the process once every rank has come here, or a minute later: when the first exits, mpirun ends the others,
// whatever they have still to say. They tell each other by files beside the program, since MPI's network may be what
// has failed.
func (r *rank) exit(status int) {
	mark := func(rank int) string { return fmt.Sprintf("%s.%s.%d", os.Args[0], os.Getenv("PMIX_NAMESPACE"), rank) }
	if err := os.WriteFile(mark(r.Rank()), nil, 0o600); err != nil {
		fmt.Println(err)
	}
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
		here := 0
		for other := range r.Size() {
			if _, err := os.Stat(mark(other)); err == nil {
				here++
			}
		}
		if here == r.Size() {
			break
		}
	}
	os.Exit(status)
}

// exits has every rank end as a program should after a failure.
func exits(ctx context.Context, r *rank) error {
	if r.Rank() == 2 {
		r.Start(ctx, group.BroadcastCall(make([]float32, 1<<20), 2))
	}
	r.reduce(ctx, time.Second, make([]float32, 1<<20), group.Sum)
	r.report("closed: %v", r.Close())
	r.exit(3)
	return nil
}

// pieces makes calls as if Open MPI could count no further than 1000.
func pieces(ctx context.Context, r *rank) error {
	mpi.SetPieceCount(1000)
	return random(100)(ctx, r)
}

// rounding has two ranks, so that each element is rounded once, as between goroutines. The mean is the sum, rounded,
// and half of it, rounded.
func rounding(ctx context.Context, r *rank) error {
	const n = 1 << 16
	var inputs [2][]uint16
	for i := range n {
		inputs[0], inputs[1] = append(inputs[0], uint16(i*40503)), append(inputs[1], uint16(i*3*40503))
	}
	for op := group.Sum; op <= group.Min; op++ {
		for _, typ := range []group.Type{group.BFloat16, group.Float16} {
			got := slices.Clone(inputs[r.Rank()])
			if err := reduceBits(ctx, r, got, typ, op); err != nil {
				return err
			}
			want := slices.Clone(inputs[0])
			between := func(other []uint16, op group.ReduceOp) error {
				both := [2][]uint16{want, slices.Clone(other)}
				return group.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
					return reduceBits(ctx, g, both[g.Rank()], typ, op)
				})
			}
			err := between(inputs[1], map[bool]group.ReduceOp{true: group.Sum, false: op}[op == group.Mean])
			if err == nil && op == group.Mean {
				err = between(make([]uint16, n), group.Mean)
			}
			if err != nil {
				return err
			}
			infinity := map[group.Type]uint16{group.BFloat16: 0x7f80, group.Float16: 0x7c00}[typ]
			for i := range n {
				nan := got[i]&0x7fff > infinity && want[i]&0x7fff > infinity
				if zero := got[i]|want[i] == 0x8000; got[i] != want[i] && !nan && !zero {
					return fmt.Errorf("%v of %v with the bits %#x and %#x is %#x, want %#x", op, typ, inputs[0][i],
						inputs[1][i], got[i], want[i])
				}
			}
		}
	}
	return nil
}

// reduceBits is an all-reduce of numbers of 16 bits.
func reduceBits(ctx context.Context, g group.Group, bits []uint16, typ group.Type, op group.ReduceOp) error {
	buffer := group.Buffer{Data: unsafe.Pointer(&bits[0]), Len: len(bits)}
	return g.Do(ctx, group.Call{Kind: group.KindAllReduce, Type: typ, Op: op, In: buffer, Out: buffer})
}

// waiting measures the processor time of a rank that waits for another.
func waiting(ctx context.Context, r *rank) error {
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	if r.Rank() == 1 {
		time.Sleep(2 * time.Second)
	}
	began, before := time.Now(), processorTime()
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	waited, used := time.Since(began), processorTime()-before
	if r.Rank() == 0 {
		r.report("used %v of %v", used, waited)
		if used > waited/5 {
			return fmt.Errorf("a rank that waited %v used the processor for %v of it", waited, used)
		}
	}
	return nil
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// alone is a world of one rank.
func alone(ctx context.Context, r *rank) error {
	if r.Size() != 1 || r.Rank() != 0 {
		return fmt.Errorf("rank %d of %d, want rank 0 of 1", r.Rank(), r.Size())
	}
	if _, err := mpi.World(); err == nil || !strings.Contains(err.Error(), "called before") {
		return fmt.Errorf("a second World gives the error %v", err)
	}
	if err := r.Close(); err != nil {
		return err
	}
	if err := group.Barrier(ctx, r); err == nil || !strings.Contains(err.Error(), "closed") {
		return fmt.Errorf("a call after Close gives the error %v", err)
	}
	return nil
}
