package trace

import (
	"cmp"
	"slices"
	"time"
)

// nest sorts spans of one stream by start, the longer first, and puts each on the first track where it is nested in
// another span or overlaps none, because viewers cannot draw spans of one track that partly overlap.
func nest(spans []Span) (sorted []Span, track []int) {
	sorted, track = slices.Clone(spans), make([]int, len(spans))
	slices.SortStableFunc(sorted, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), -cmp.Compare(a.End, b.End))
	})
	var open [][]time.Duration // by track, when the spans end that the next one may lie in: the innermost last
	for i, s := range sorted {
		at := 0
		for ; at < len(open); at++ {
			for n := len(open[at]); n > 0 && open[at][n-1] <= s.Start; n-- {
				open[at] = open[at][:n-1]
			}
			if n := len(open[at]); n == 0 || s.End <= open[at][n-1] {
				break
			}
		}
		if at == len(open) {
			open = append(open, nil)
		}
		open[at], track[i] = append(open[at], s.End), at
	}
	return sorted, track
}
