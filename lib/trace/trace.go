// Package trace is a profiler: it records what ran when, and shows where the time went.
//
// A [Recorder] records spans of time on the streams of a rank, and counters, from any number of goroutines. A nil
// Recorder records nothing and costs almost nothing, so code can call it unconditionally:
//
//	end := recorder.Start(rank, trace.Compute, "forward h0")
//	...
//	end()
//
// The result is a [Trace], plain data: [Busy] and [Overlap] measure it, [Trace.Table] sums it up, [Trace.Timeline] and
// [Trace.Counts] draw it, and [Trace.WriteChrome] writes it for Perfetto. A [Profiler] records only some steps of a
// long run, [Time] times one function, and a [Roof] says how fast an operation could have been. [FromProfile] adds what
// XLA's profiler recorded: the kernels on each stream of a device, and the calls that launched them.
package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Common names of streams. A stream may have any other name.
const (
	Compute = "compute"
	Send    = "send"   // sending data to other ranks
	Wait    = "wait"   // idle, waiting for data
	Reduce  = "reduce" // reducing data of ranks, as in an all-reduce
	Gather  = "gather" // gathering shards of ranks, as in an all-gather
)

// Span is a period in which a stream of a rank did one thing. Times are counted from the creation of the recorder, or
// from the start that [Trace.Within], [Trace.Shift] or a [Window] sets.
type Span struct {
	Rank         int
	Stream, Name string
	Start, End   time.Duration
	Work         // the work done, as counted by the code that did it; zero if not counted

	// Flow is the same number, other than 0, for a call that starts work elsewhere, as a launch of a kernel does, and
	// for this work. The call is the first of them to start.
	Flow   int64
	Detail string // more about the span, such as how a kernel was launched; may be empty
}

// Host is the rank of spans on threads of the host that are no rank's own.
const Host = -1

// Work is an amount of work: floating-point operations, and bytes moved.
type Work struct{ FLOPs, Bytes int64 }

// Counter is the value of a counter of a rank from a time on. Times are as in [Span].
type Counter struct {
	Rank  int
	Name  string
	At    time.Duration
	Value int64
}

// process names a rank.
func process(rank int) string {
	if rank == Host {
		return "host"
	}
	return fmt.Sprintf("rank %d", rank)
}

// Trace is a recording: spans sorted by rank, stream and start, and counters sorted by time. Its methods do not change
// it.
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
