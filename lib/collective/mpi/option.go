package mpi

import (
	"errors"
	"fmt"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Option is a setting of [World].
type Option func(*config)

// Timeout is how long a call waits for the other ranks if its context has no deadline. The default is
// [group.DefaultTimeout].
func Timeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

type config struct{ timeout time.Duration }

func newConfig(options []Option) (config, error) {
	c := config{group.DefaultTimeout}
	for _, option := range options {
		if option != nil {
			option(&c)
		}
	}
	if c.timeout <= 0 {
		return c, fmt.Errorf("mpi: a timeout of %v; want more than 0", c.timeout)
	}
	return c, nil
}

// ErrLate is what [World]'s error wraps if a process of the job did not start in time: a new start of the job may
// succeed.
var ErrLate = errors.New("mpi: not all processes of the job started")
