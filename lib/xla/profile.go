package xla

import (
	"errors"

	"github.com/shardbook/shardbook/lib/xplane"
)

// Profile runs f and records all that runs in the process meanwhile with XLA's profiler. It records one profile at a
// time. If the plugin has no profiler, the error wraps [ErrNoProfiler] and f does not run. f's error is returned
// unchanged.
func (b *Backend) Profile(f func() error) (*xplane.Profile, error) {
	if b.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	if f == nil {
		return nil, errors.New("the function to profile is nil: give one")
	}
	return b.owner.record(f)
}
