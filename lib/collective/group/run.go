package group

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Run runs f on n ranks, each in its own goroutine, and returns when all have returned.
// It joins their errors, each with the number of its rank.
//
// A call that waits for a rank whose function has returned, or that is made later, fails at once and names the rank. A
// panic in a rank becomes its error. The context of f ends when a rank has failed, so that the others can stop too.
func Run(ctx context.Context, n int, f func(ctx context.Context, g Group) error, options ...Option) error {
	s, err := newRoot(n, options)
	if err != nil {
		return err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for rank, m := range s.members {
		wait.Go(func() {
			d := &departure{reason: "died", err: errDied}
			defer func() {
				if r := recover(); r != nil {
					d = &departure{
						reason: fmt.Sprintf("panicked: %v", r),
						err:    fmt.Errorf("panic: %v\n%s", r, debug.Stack()),
					}
				}
				s.leave(rank, d)
				if d.err != nil {
					errs[rank] = fmt.Errorf("rank %d: %w", rank, d.err)
					cancel(errs[rank])
				}
			}()
			if err := f(ctx, m); err != nil {
				d = &departure{reason: "returned an error: " + err.Error(), err: err}
			} else {
				d = &departure{reason: "has returned"}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// New makes a group of n ranks, for callers that have their own goroutines. It cannot
// know that a rank has ended: calls that wait for such a rank run into the timeout.
func New(n int, options ...Option) ([]Group, error) {
	s, err := newRoot(n, options)
	if err != nil {
		return nil, err
	}
	groups := make([]Group, n)
	for rank, m := range s.members {
		groups[rank] = m
	}
	return groups, nil
}

func newRoot(n int, options []Option) (*shared, error) {
	config, err := newConfig(n, options)
	if err != nil {
		return nil, err
	}
	recorders := make([]*Recorder, n)
	for rank := range recorders {
		recorders[rank] = NewRecorder()
	}
	return newShared("", config, recorders), nil
}
