package trace

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Timing says how [Time] times a function.
type Timing struct {
	// WarmUp is the number of calls before the timed ones. First calls include one-time costs: compilation, memory
	// allocation, cold caches, a CPU that leaves its idle state. 0 means 10 calls, which is enough for most functions;
	// a negative number means none.
	WarmUp int
	// Calls is the number of timed calls. 0 means 10. Other programs on the machine can only make a call slower, so the
	// minimum is closest to the function's own time, and the median is what to expect.
	Calls int
	// Sync, if not nil, waits until the device has finished, like torch.cuda.synchronize. Without it, Time measures
	// only how long it takes to start the work, and the work of one call delays the next.
	Sync func() error
}

// Time calls a function repeatedly and returns how long each timed call took, including Sync. If f or Sync fails, Time
// returns the error and the times so far.
func Time(f func() error, how Timing) (Samples, error) {
	if f == nil {
		return nil, errors.New("trace: no function to time")
	}
	if how.Calls < 0 {
		return nil, fmt.Errorf("trace: %d calls to time: take 1 or more, or 0 for the default", how.Calls)
	}
	warmUp, calls := how.WarmUp, how.Calls
	if warmUp == 0 {
		warmUp = 10
	}
	if calls == 0 {
		calls = 10
	}
	var times Samples
	for i := -max(0, warmUp); i < calls; i++ {
		begin := time.Now()
		err := f()
		if err == nil && how.Sync != nil {
			err = how.Sync()
		}
		took := time.Since(begin)
		switch {
		case err != nil && i < 0:
			return nil, fmt.Errorf("trace: warm-up call %d of %d: %w", i+warmUp+1, warmUp, err)
		case err != nil:
			return times, fmt.Errorf("trace: timed call %d of %d: %w", i+1, calls, err)
		case i >= 0:
			times = append(times, took)
		}
	}
	return times, nil
}

// Samples are the times of repeated calls, in order. All statistics of an empty list are 0.
type Samples []time.Duration

// Min is the least time.
func (s Samples) Min() time.Duration { return s.Quantile(0) }

// Median returns the middle time, or the mean of the two middle ones.
func (s Samples) Median() time.Duration { return s.Quantile(0.5) }

// Max is the greatest time.
func (s Samples) Max() time.Duration { return s.Quantile(1) }

// Mean returns the average time.
func (s Samples) Mean() time.Duration {
	if len(s) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum / time.Duration(len(s))
}

// Quantile returns the given quantile, from 0 (the minimum) to 1 (the maximum), interpolated linearly as NumPy does.
// (gonum's stat.Quantile interpolates differently: its 0.5 quantile of 1, 2, 3 is 1.5.)
func (s Samples) Quantile(share float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	at := max(0, min(share, 1)) * float64(len(s)-1)
	below, above := sorted[int(at)], sorted[int(math.Ceil(at))]
	return below + time.Duration((at-math.Floor(at))*float64(above-below))
}

// String returns the median, the minimum and the maximum.
func (s Samples) String() string {
	return fmt.Sprintf("median %v (%v to %v, %d calls)", s.Median(), s.Min(), s.Max(), len(s))
}
