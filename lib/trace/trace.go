// Package trace is a profiler: it records what ran when, and shows where the time went.
//
// A [Recorder] takes spans of time on the streams of a rank, and counts that change with time, from any number of
// goroutines. A nil Recorder records nothing and costs next to nothing, so code that can be traced calls it without
// asking whether anybody wants to know:
//
//	end := recorder.Start(rank, trace.Compute, "forward h0")
//	...
//	end()
//
// What was recorded is a [Trace], plain data: [Busy] and [Overlap] measure it, [Trace.Table] adds it up,
// [Trace.Timeline] and [Trace.Counts] draw it, and [Trace.WriteChrome] writes it for Perfetto. A [Profiler] records
// only some steps of a long run, [Time] times one function, and a [Roof] says how fast an operation could have been.
package trace

import (
	"cmp"
	"slices"
	"time"
)

// Names of streams, so that traces of different techniques read alike. A stream may have any other name.
const (
	Compute = "compute"
	Send    = "send"   // giving data to other ranks
	Wait    = "wait"   // having nothing to do until something is there
	Reduce  = "reduce" // adding up what ranks have, as an all-reduce does
	Gather  = "gather" // putting together what ranks have parts of, as an all-gather does
)

// Span is a stretch of time in which a stream of a rank did one thing. Times are counted from when the recorder was
// made, or from where [Trace.Within], [Trace.Shift] or a [Window] put their start.
type Span struct {
	Rank         int
	Stream, Name string
	Start, End   time.Duration
	Work         // what was done, as counted by whoever did it; zero if nobody counted
}

// Work is an amount of work: floating-point operations, and bytes moved.
type Work struct{ FLOPs, Bytes int64 }

// Counter is the value that a count of a rank had from a time on. The time is counted as a [Span]'s.
type Counter struct {
	Rank  int
	Name  string
	At    time.Duration
	Value int64
}

// Trace is what was recorded: spans by rank, stream and start, and counters by time. Its methods that take or return
// one leave it as it is.
type Trace struct {
	Spans    []Span
	Counters []Counter
}

func sortSpans(spans []Span) {
	slices.SortStableFunc(spans, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start),
			cmp.Compare(a.End, b.End))
	})
}

func sortCounters(counters []Counter) {
	slices.SortStableFunc(counters, func(a, b Counter) int { return cmp.Compare(a.At, b.At) })
}

// byStream returns the spans of each stream of each rank, sorted.
func byStream(spans []Span) (streams [][]Span) {
	sorted := slices.Clone(spans)
	sortSpans(sorted)
	for begin, i := 0, 0; i < len(sorted); i++ {
		if i+1 == len(sorted) || sorted[i+1].Rank != sorted[i].Rank || sorted[i+1].Stream != sorted[i].Stream {
			streams = append(streams, sorted[begin:i+1])
			begin = i + 1
		}
	}
	return streams
}
