package mpijob

import (
	"context"
	"os"
	"strconv"
	"time"
)

// Early is an error before the process has joined the others, if there are any: with wrong use all have the same one.
type Early struct{ error }

// NewEarly makes one.
func NewEarly(err error) Early { return Early{err} }

func (e Early) Unwrap() error { return e.error }

// turn is how long a process that is not the first waits before it says an error that all may have.
const turn = 3 * time.Second

// Mine waits for the first process to say the error, whose end has mpirun end this one, too, and reports whether it is
// left to this one.
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

// Started is how many processes mpirun started; 0 without it.
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
