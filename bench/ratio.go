package main

import "slices"

// sampleTimes are one implementation's times in milliseconds, one a round.
type sampleTimes []float64

// min is the least, or 0 where there is none.
func (t sampleTimes) min() float64 {
	if len(t) == 0 {
		return 0
	}
	return slices.Min(t)
}

func (t sampleTimes) median() float64 { return median(t) }

// median is the middle value, or the mean of the two middle ones; 0 where there is none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// pairRatios divides, round by round, the time of the best of the others in that
// round by ours. It is nil if there are no others.
func pairRatios(mine sampleTimes, others []sampleTimes) []float64 {
	if len(others) == 0 {
		return nil
	}
	ratios := make([]float64, len(mine))
	for i, t := range mine {
		best := others[0][i]
		for _, other := range others[1:] {
			best = min(best, other[i])
		}
		ratios[i] = best / t
	}
	return ratios
}
