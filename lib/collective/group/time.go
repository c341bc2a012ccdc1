package group

import (
	"context"
	"time"
)

// Time measures f on all ranks: from when the first rank starts it, after a barrier, to when the last one returns. All
// ranks call it and get the same time. It is for ranks of one process, which share a clock.
//
// An error of f is returned as it is; the other ranks then get a [*Failure].
func Time(ctx context.Context, g Group, f func() error) (time.Duration, error) {
	if err := Barrier(ctx, g); err != nil {
		return 0, err
	}
	begin := time.Since(epoch)
	if err := f(); err != nil {
		return 0, err
	}
	span := []int64{-int64(begin), int64(time.Since(epoch))}
	if err := AllReduce(ctx, g, span, Max); err != nil {
		return 0, err
	}
	return time.Duration(span[0] + span[1]), nil
}

// epoch is what Time counts from, on the clock that nobody sets.
var epoch = time.Now()
