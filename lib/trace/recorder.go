package trace

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder records spans and counters. Make it with [New]; nil is one that is off. Its methods may be called from
// several goroutines at once. It keeps all that it records until [Recorder.Take].
type Recorder struct {
	begin  time.Time
	paused atomic.Bool
	latest atomic.Pointer[block]

	mu       sync.Mutex
	counters []Counter
}

// block holds spans in the order in which they began. A span gets its place when it begins, by a counter, so that ranks
// need no lock between them and a span needs no memory of its own.
type block struct {
	before *block
	used   atomic.Int64 // above the number of places once it is full
	places [256]place
}

// place is that of a span. Its end, which is never 0, is written last and only once: whoever sees it sees the span.
type place struct {
	span Span
	end  atomic.Int64
}

// New returns a recorder whose clock starts now.
func New() *Recorder { return &Recorder{begin: time.Now()} }

// Start begins a span, and returns what ends it. A span is recorded when it ends, and once.
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

// Count records that a count has a new value. Of calls at once, the later record has the later time.
func (r *Recorder) Count(rank int, name string, value int64) {
	if r == nil || r.paused.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = append(r.counters, Counter{rank, name, r.now(), value})
}

// Pause makes the recorder pass over what begins or is counted from now on. Spans under way are recorded when they end.
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

// Counters returns the counters in the order of time.
func (r *Recorder) Counters() []Counter {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.counters)
}

// Trace returns what is recorded so far: the spans that have ended, and all counters.
func (r *Recorder) Trace() Trace { return Trace{r.Spans(), r.Counters()} }

// Take is [Recorder.Trace], and forgets everything: also the spans still under way, which are then recorded nowhere.
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
