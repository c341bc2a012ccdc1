package mpijob

import (
	"context"
	"os"
	"strconv"
	"time"
)

// Early is an error before the process has joined the others. With invalid flags all processes have the same one.
type Early struct{ error }

// NewEarly wraps an error.
func NewEarly(err error) Early { return Early{err} }

func (e Early) Unwrap() error { return e.error }

// turn is how long a process other than the first waits before it prints an error that all may have.
const turn = 3 * time.Second

// Mine waits for the first process to print the error, whose exit makes mpirun end this process, too. It reports
// whether this process must print it.
func (e Early) Mine(ctx context.Context) bool {
	if started("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID") == 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(turn):
		return true
	}
}

// Started returns the number of processes that mpirun started; 0 without mpirun.
func Started() int { return started("OMPI_COMM_WORLD_SIZE") }

// started is the number in the first of the variables that is set, by whatever started the process; else 0.
func started(variables ...string) int {
	for _, name := range variables {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
	}
	return 0
}
