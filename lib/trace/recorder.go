package trace

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder records spans and counters. [New] creates one; a nil Recorder records nothing. Its methods may be called
// from several goroutines. It holds everything it records in memory until [Recorder.Take].
type Recorder struct {
	begin  time.Time
	paused atomic.Bool
	latest atomic.Pointer[block]

	mu       sync.Mutex
	counters []Counter
}

// block holds spans in the order in which they began. An atomic counter assigns places to spans, so that ranks need no
// lock and a span needs no allocation.
type block struct {
	before *block
	used   atomic.Int64 // above the number of places once it is full
	places [256]place
}

// place holds one span. Its end, never 0, is written last and only once: a reader that sees the end sees the complete
// span.
type place struct {
	span Span
	end  atomic.Int64
}

// New returns a recorder whose clock starts now.
func New() *Recorder { return &Recorder{begin: time.Now()} }

// Start begins a span and returns the function that ends it. The span is recorded when end is first called.
func (r *Recorder) Start(rank int, stream, name string) (end func()) {
	if r == nil { // here, for the compiler to see at the call
		return nothing
	}
	return r.start(rank, stream, name)
}

func nothing() {}

func (r *Recorder) start(rank int, stream, name string) (end func()) {
	if r.paused.Load() {
		return nothing
	}
	p := r.place()
	p.span = Span{Rank: rank, Stream: stream, Name: name, Start: r.now()}
	return func() { p.end.CompareAndSwap(0, max(1, int64(r.now()))) }
}

// Began returns when the recorder's clock started, or the zero time of a nil recorder.
func (r *Recorder) Began() time.Time {
	if r == nil {
		return time.Time{}
	}
	return r.begin
}

func (r *Recorder) now() time.Duration { return time.Since(r.begin) }

func (r *Recorder) place() *place {
	for {
		b := r.latest.Load()
		if b != nil {
			if i := b.used.Add(1) - 1; i < int64(len(b.places)) {
				return &b.places[i]
			}
		}
		r.latest.CompareAndSwap(b, &block{before: b}) // or another goroutine has done it
	}
}

// Count records a new value of a counter. Concurrent calls are recorded in order of time.
func (r *Recorder) Count(rank int, name string, value int64) {
	if r == nil || r.paused.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = append(r.counters, Counter{rank, name, r.now(), value})
}

// Pause stops the recording of new spans and counts. Spans that have begun are recorded when they end.
func (r *Recorder) Pause() {
	if r != nil {
		r.paused.Store(true)
	}
}

// Resume ends a [Recorder.Pause].
func (r *Recorder) Resume() {
	if r != nil {
		r.paused.Store(false)
	}
}

// Spans returns the spans that have ended, by rank, stream and start.
func (r *Recorder) Spans() []Span {
	if r == nil {
		return nil
	}
	return ended(r.latest.Load())
}

func ended(b *block) (spans []Span) {
	for ; b != nil; b = b.before {
		for i := range min(int(b.used.Load()), len(b.places)) {
			p := &b.places[i]
			if end := p.end.Load(); end != 0 {
				s := p.span
				s.End = time.Duration(end)
				spans = append(spans, s)
			}
		}
	}
	sortSpans(spans)
	return spans
}

// Counters returns the counters, sorted by time.
func (r *Recorder) Counters() []Counter {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.counters)
}

// Trace returns what was recorded so far: the spans that have ended, and all counters.
func (r *Recorder) Trace() Trace { return Trace{r.Spans(), r.Counters()} }

// Take returns the trace and empties the recorder. Spans that have not ended are not recorded at all.
func (r *Recorder) Take() Trace {
	if r == nil {
		return Trace{}
	}
	spans := ended(r.latest.Swap(nil))
	r.mu.Lock()
	defer r.mu.Unlock()
	counters := r.counters
	r.counters = nil
	return Trace{spans, counters}
}
