// Package trace records what ran when: spans of time on the streams of a rank, and counts that change with time.
//
// A [Recorder] takes them from any number of goroutines. A nil Recorder records nothing and costs nothing, so code that
// can be traced calls it without asking whether anybody wants to know:
//
//	end := recorder.Start(rank, "compute", "forward h0")
//	...
//	end()
//
// What was recorded is plain data, which [Busy] and [Overlap] measure.
package trace

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Span is a stretch of time in which a stream of a rank did one thing. Times are counted from when the recorder was made.
type Span struct {
	Rank         int
	Stream, Name string
	Start, End   time.Duration
}

// Counter is the value that a count of a rank had from a time on. The time is counted from when the recorder was made.
type Counter struct {
	Rank  int
	Name  string
	At    time.Duration
	Value int64
}

// Recorder records spans and counters. Make it with [New]; nil is one that is off. Its methods may be called from
// several goroutines at once.
type Recorder struct {
	begin    time.Time
	mu       sync.Mutex
	spans    []Span
	counters []Counter
}

// New returns a recorder whose clock starts now.
func New() *Recorder { return &Recorder{begin: time.Now()} }

// Start begins a span, and returns what ends it. A span is recorded when it ends, and once.
func (r *Recorder) Start(rank int, stream, name string) (end func()) {
	if r == nil {
		return nothing
	}
	start := time.Since(r.begin)
	return sync.OnceFunc(func() {
		end := time.Since(r.begin)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.spans = append(r.spans, Span{rank, stream, name, start, end})
	})
}

func nothing() {}

// Count records that a count has a new value. Of calls at once, the later record has the later time.
func (r *Recorder) Count(rank int, name string, value int64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = append(r.counters, Counter{rank, name, time.Since(r.begin), value})
}

// Spans returns the spans that have ended, by rank, stream and start.
func (r *Recorder) Spans() []Span {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	spans := slices.Clone(r.spans)
	r.mu.Unlock()
	slices.SortStableFunc(spans, func(a, b Span) int {
		return cmp.Or(a.Rank-b.Rank, cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End))
	})
	return spans
}

// Counters returns the counters in the order of time.
func (r *Recorder) Counters() []Counter {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.counters)
}
