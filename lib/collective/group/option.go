package group

import (
	"fmt"
	"time"
)

// Option is a setting of Run or New.
type Option func(*config)

// DefaultTimeout is how long a call waits for the other ranks without [Timeout].
const DefaultTimeout = time.Minute

// Timeout is how long a call waits for the other ranks if its context has no deadline, from when the calls before it
// are done. The default is [DefaultTimeout]. Once all ranks have made the call there is no timeout: only memory is
// copied or reduced then, and all buffers are in use.
func Timeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// spins is how often a waiting rank yields before it sleeps.
const spins = 4

type config struct {
	timeout time.Duration
	hook    func(rank int, s step)
}

func newConfig(size int, options []Option) (config, error) {
	c := config{timeout: DefaultTimeout}
	for _, option := range options {
		if option != nil {
			option(&c)
		}
	}
	switch {
	case size < 1 || size > maxRanks:
		return c, fmt.Errorf("group: %d ranks; want 1 to %d", size, maxRanks)
	case c.timeout <= 0:
		return c, fmt.Errorf("group: a timeout of %v; want more than 0", c.timeout)
	}
	return c, nil
}

// step is a moment of a call, at which tests inject faults.
type step uint8

const (
	stepCalled  step = iota // nobody knows of the call yet
	stepArrived             // the others know of it, and not all are there
	stepWorking             // the rank has taken a block of the work
	stepLeaving             // the result is there
	steps
)

func (c *config) step(rank int, s step) {
	if c.hook != nil {
		c.hook(rank, s)
	}
}
