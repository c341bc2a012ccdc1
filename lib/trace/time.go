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
	// WarmUp is how many calls come before the timed ones. The first calls pay for what happens once: a program is
	// compiled, memory is asked for and touched, caches fill, a processor leaves its rest. 0 means 10 calls, after
	// which that is over for most functions; below 0 means none.
	WarmUp int
	// Calls is how many calls are timed. 0 means 10: one alone does not show how much the times differ. Others on the
	// machine can only make a call slower, so the least time is closest to what the function takes by itself, and the
	// median is what to expect.
	Calls int
	// Sync, where it is not nil, waits until what the function has begun is done. A device works on after the call that
	// gives it work has returned: without Sync only that call is timed, and the work of one call delays the next.
	Sync func() error
}

// Time calls a function again and again, and returns how long each timed call took, from before it until its result is
// there. An error of f or of Sync ends that, and is returned with the times so far.
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

// Samples are the times of equal calls, in the order in which they were made. What is computed from none is 0.
type Samples []time.Duration

// Min is the least time.
func (s Samples) Min() time.Duration { return s.Quantile(0) }

// Median is the middle time, or the mean of the two middle ones.
func (s Samples) Median() time.Duration { return s.Quantile(0.5) }

// Max is the greatest time.
func (s Samples) Max() time.Duration { return s.Quantile(1) }

// Mean is the sum of the times by their number.
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

// Quantile is the time that a share of the times, from 0 to 1, do not exceed, interpolated between two of them as NumPy
// does: 0 is the least, 0.5 the median, 1 the greatest. (The interpolation of gonum's stat.Quantile is another one, by
// which 0.5 of 1, 2, 3 is 1.5.)
func (s Samples) Quantile(share float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	at := max(0, min(share, 1)) * float64(len(s)-1)
	below, above := sorted[int(at)], sorted[int(math.Ceil(at))]
	return below + time.Duration((at-math.Floor(at))*float64(above-below))
}

// String tells the median, the least and the greatest time.
func (s Samples) String() string {
	return fmt.Sprintf("median %v (%v to %v, %d calls)", s.Median(), s.Min(), s.Max(), len(s))
}
