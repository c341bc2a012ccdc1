// Package rank is what engines of ranks have in common, each rank with programs and a device of its own: its part of a
// batch, the memory of a tensor as the group takes it, a stream that communicates in the background, and checkpoints that each writes
// its part of.
package rank

import (
	"context"
	"errors"
	"sync"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Free frees device memory at once: the garbage collector would come late. Values may be nil.
func Free(values ...*tensors.Tensor) error {
	var errs []error
	for _, v := range values {
		if v != nil {
			errs = append(errs, v.FinalizeAll())
		}
	}
	return errors.Join(errs...)
}

// Ended returns the group's failure, which says who is at fault, if the context has ended. Ended by this rank's caller
// alone, it is a failure too: the others learn of it.
func Ended(ctx context.Context, g group.Group) error {
	if ctx.Err() == nil {
		return nil
	}
	return group.Barrier(ctx, g)
}

// Each does something on so many ranks of this process at once. An error ends the context that fail belongs to; the first one is
// returned, of which others may be the consequence.
func Each(ctx context.Context, fail context.CancelCauseFunc, ranks int, do func(i int) error) error {
	var all sync.WaitGroup
	for i := range ranks {
		all.Go(func() {
			if err := do(i); err != nil {
				fail(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
