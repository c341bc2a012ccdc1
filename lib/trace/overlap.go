package trace

import (
	"cmp"
	"slices"
	"time"
)

// Of returns the spans of one stream of a rank.
func Of(spans []Span, rank int, stream string) []Span {
	var of []Span
	for _, s := range spans {
		if s.Rank == rank && s.Stream == stream {
			of = append(of, s)
		}
	}
	return of
}

// Busy returns how long at least one of the spans ran. It ignores a span that ends before it starts.
func Busy(spans []Span) time.Duration { return length(union(spans)) }

// Overlap returns the fraction of the time of a (as [Busy] counts it) in which a span of b also ran: 0 to 1, and 0 if a
// took no time.
func Overlap(a, b []Span) float64 {
	as, bs := union(a), union(b)
	if len(as) == 0 {
		return 0
	}
	var both time.Duration
	for i, j := 0, 0; i < len(as) && j < len(bs); {
		both += max(0, min(as[i].end, bs[j].end)-max(as[i].start, bs[j].start))
		if as[i].end < bs[j].end {
			i++
		} else {
			j++
		}
	}
	return float64(both) / float64(length(as))
}

// interval is the time from start to end, which is later.
type interval struct{ start, end time.Duration }

func length(intervals []interval) (total time.Duration) {
	for _, i := range intervals {
		total += i.end - i.start
	}
	return total
}

// union returns the time of all spans as sorted intervals that do not overlap.
func union(spans []Span) []interval {
	sorted := slices.Clone(spans)
	slices.SortFunc(sorted, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	var all []interval
	for _, s := range sorted {
		if last := len(all) - 1; s.End <= s.Start {
			continue
		} else if last >= 0 && s.Start <= all[last].end {
			all[last].end = max(all[last].end, s.End)
		} else {
			all = append(all, interval{s.Start, s.End})
		}
	}
	return all
}
