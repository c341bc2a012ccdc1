package schedule

import (
	"fmt"
	"math"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

// Trace is the timeline as a trace, in which a time of 1 takes unit: for trace.Trace.WriteChrome, and for
// trace.Timelines, which draws it above a trace that was measured. Spans are on the stream trace.Compute and have the names
// of their actions, such as 2F0. Actions that take no time are left out. A unit that is not above 0, or so long that the
// times do not fit a time.Duration, is an error.
func (t Timeline) Trace(unit time.Duration) (trace.Trace, error) {
	if unit <= 0 || t.Makespan*float64(unit) > math.MaxInt64/2 {
		return trace.Trace{}, fmt.Errorf("schedule: a trace of %g units of %v: choose a unit above 0, and at most %v",
			t.Makespan, unit, time.Duration(math.MaxInt64/2/max(1, t.Makespan)))
	}
	at := func(x float64) time.Duration { return time.Duration(math.Round(x * float64(unit))) }
	var spans []trace.Span
	for _, s := range t.Spans {
		if s.End > s.Start {
			spans = append(spans, trace.Span{Rank: s.Rank, Stream: trace.Compute, Name: s.Action.String(),
				Start: at(s.Start), End: at(s.End)})
		}
	}
	return trace.Trace{Spans: spans}, nil
}
