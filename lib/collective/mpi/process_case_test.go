//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

func init() {
	cases["leaves"] = leaves
	cases["killed"] = killed
	cases["killed at work"] = killedAtWork
	cases["cut off"] = cutOff
	cases["exits"] = exits
	cases["pieces"] = pieces
	cases["plans"] = plans
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
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r.report("%v", group.AllReduce(short, r, make([]float32, 8), group.Sum))
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
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r.report("%v", group.AllReduce(short, r, buf, group.Product))
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
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r.report("%v", group.AllReduce(short, r, make([]float32, 8), group.Sum))
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
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r.report("%v", group.AllReduce(short, r, make([]float32, 1<<20), group.Sum))
	r.report("closed: %v", r.Close())
	r.exit(3)
	return nil
}

// pieces makes calls as if Open MPI could count no further than 1000.
func pieces(ctx context.Context, r *rank) error {
	mpi.SetPieceCount(1000)
	return random(100)(ctx, r)
}

// plans runs every algorithm of an all-reduce over MPI's sends and receives.
func plans(ctx context.Context, r *rank) error {
	for _, algorithm := range plan.Algorithms(plan.AllReduce) {
		p, err := plan.New(plan.AllReduce, algorithm, r.Size())
		if err != nil {
			return err
		}
		buf := make([]float64, 1001)
		for i := range buf {
			buf[i] = float64(i % (r.Rank() + 2))
		}
		want := slices.Clone(buf)
		if err := firstError(group.RunPlan(ctx, r, p, buf, group.Mean), group.AllReduce(ctx, r, want,
			group.Mean)); err != nil {
			return fmt.Errorf("%v: %w", algorithm, err)
		}
		if !slices.Equal(buf, want) {
			return fmt.Errorf("%v: the plan gives %v, MPI %v", algorithm, head(buf), head(want))
		}
	}
	return nil
}
