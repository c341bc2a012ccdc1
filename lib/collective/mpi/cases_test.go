//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/shardbook/shardbook/lib/collective/mpi"
)

// cases are what processes can be asked to do, by the value of envCase, beside those of conformance. A case returns an
// error, or exits by itself.
var cases = map[string]func(context.Context, *rank) error{
	"leaves": leaves, "killed": killed, "killed at work": killedAtWork, "cut off": cutOff, "exits": exits,
	"pieces": pieces, "rounding": rounding, "waiting": waiting, "alone": alone,
}

// rank is a process under mpirun.
type rank struct{ *mpi.Job }

func init() { asRank = playRank }

func playRank(play string) {
	time.AfterFunc(5*time.Minute, func() { os.Exit(99) }) // whatever mpirun does
	job, err := mpi.World(mpi.Timeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		os.Exit(98)
	}
	r := &rank{job}
	goroutines := runtime.NumGoroutine()
	if c, ok := conformance[play]; ok {
		if err = c.play(context.Background(), r); err == nil {
			time.Sleep(500 * time.Millisecond) // for timers of contexts
			if n := runtime.NumGoroutine(); n > goroutines {
				err = fmt.Errorf("%d goroutines are left, there were %d", n, goroutines)
			}
		}
	} else {
		err = cases[play](context.Background(), r)
	}
	if err != nil {
		r.report("%v", err)
		time.Sleep(time.Second) // the others may have something to say
		job.Abort(97)
	}
	if err := job.Close(); err != nil {
		r.report("close: %v", err)
		os.Exit(96)
	}
	r.report("done")
	os.Exit(0)
}

// report prints a line that the test reads.
func (r *rank) report(format string, args ...any) {
	fmt.Printf("rank %d reports: %s\n", r.Rank(), fmt.Sprintf(format, args...))
}
