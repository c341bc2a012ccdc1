package trace_test

import (
	"cmp"
	"slices"

	"github.com/shardbook/shardbook/lib/trace"
)

// sortTrace puts a trace into the order that a recorder gives.
func sortTrace(t trace.Trace) {
	slices.SortStableFunc(t.Spans, func(a, b trace.Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start),
			cmp.Compare(a.End, b.End))
	})
	slices.SortStableFunc(t.Counters, func(a, b trace.Counter) int { return cmp.Compare(a.At, b.At) })
}
