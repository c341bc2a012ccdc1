//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shardbook/shardbook/lib/collective/mpi"
)

// cases are what ranks can be asked to do, by the value of envCase. A case returns an error, or exits by itself.
var cases = map[string]func(context.Context, *rank) error{}

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
	if err := cases[play](context.Background(), r); err != nil {
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
