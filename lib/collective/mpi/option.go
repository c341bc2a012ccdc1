package mpi

import (
	"fmt"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Option is a setting of World.
type Option func(*config)

// Timeout is how long a call waits for the other ranks if its context has no
// deadline. Without this option it is group.DefaultTimeout.
func Timeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// Records is how many operations the flight recorder keeps. Without this option it
// is group.DefaultRecords.
func Records(n int) Option { return func(c *config) { c.records = n } }

type config struct {
	timeout time.Duration
	records int
}

func newConfig(options []Option) (config, error) {
	c := config{timeout: group.DefaultTimeout, records: group.DefaultRecords}
	for _, option := range options {
		if option != nil {
			option(&c)
		}
	}
	switch {
	case c.timeout <= 0:
		return c, fmt.Errorf("mpi: a timeout of %v; want more than none", c.timeout)
	case c.records < 1:
		return c, fmt.Errorf("mpi: a flight recorder of %d operations; want one or more", c.records)
	}
	return c, nil
}
