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
		at := slices.IndexFunc(open, func(ends []time.Duration) bool {
			for len(ends) > 0 && ends[len(ends)-1] <= s.Start {
				ends = ends[:len(ends)-1]
			}
			return len(ends) == 0 || s.End <= ends[len(ends)-1]
		})
		if at < 0 {
			at, open = len(open), append(open, nil)
		}
		ends := open[at]
		for len(ends) > 0 && ends[len(ends)-1] <= s.Start {
			ends = ends[:len(ends)-1]
		}
		open[at], track[i] = append(ends, s.End), at
	}
	return sorted, track
}
