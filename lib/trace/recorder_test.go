package trace_test

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/lib/trace"
)

// A recorder that is nil takes everything and has nothing.
func TestNil(t *testing.T) {
	var r *trace.Recorder
	use := func() {
		r.Start(0, trace.Compute, "x")()
		r.Count(0, "bytes", 1)
		r.Pause()
		r.Resume()
	}
	use()
	if s, c := r.Spans(), r.Counters(); s != nil || c != nil {
		t.Errorf("a nil recorder has %v and %v", s, c)
	}
	if a, b := r.Trace(), r.Take(); a.Spans != nil || a.Counters != nil || b.Spans != nil || b.Counters != nil {
		t.Errorf("a nil recorder has %v and %v", a, b)
	}
	if n := testing.AllocsPerRun(100, use); n != 0 {
		t.Errorf("%v allocations of a nil recorder", n)
	}
}

// A span takes one small piece of memory beside its place, and none while the recorder pauses.
func TestAllocations(t *testing.T) {
	r := trace.New()
	span := func() { r.Start(0, trace.Compute, "x")() }
	if n := testing.AllocsPerRun(1000, span); n != 1 {
		t.Errorf("%v allocations for a span", n)
	}
	r.Pause()
	if n := testing.AllocsPerRun(1000, span); n != 0 {
		t.Errorf("%v allocations for a span of a recorder that pauses", n)
	}
}

// Every span that ended is there, once, in order, and its times are; one that has not ended is not.
func TestManyGoroutines(t *testing.T) {
	const ranks, each = 8, 100
	r := trace.New()
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() {
			for i := range each {
				end := r.Start(rank, fmt.Sprint(i%3), fmt.Sprint(i))
				r.Count(rank, "n", int64(i))
				end()
				end()
			}
		})
	}
	all.Go(func() { // looking does not disturb
		for before := 0; before < ranks*each; {
			now := r.Trace()
			if len(now.Spans) < before {
				t.Errorf("%d spans after %d", len(now.Spans), before)
				return
			}
			before = len(now.Spans)
		}
	})
	all.Wait()
	r.Start(0, "never", "ends")
	spans := r.Spans()
	if len(spans) != ranks*each {
		t.Fatalf("%d spans, want %d", len(spans), ranks*each)
	}
	if !slices.IsSortedFunc(spans, func(a, b trace.Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start))
	}) {
		t.Error("the spans are not in order")
	}
	for rank := range ranks {
		for stream := range 3 {
			names := trace.Of(spans, rank, fmt.Sprint(stream))
			for i, s := range names { // each rank's were one after the other
				n := 3*i + stream
				if s.Name != fmt.Sprint(n) || s.Start < 0 || s.End < s.Start || i > 0 && s.Start < names[i-1].End {
					t.Errorf("span %d of rank %d, stream %d: %+v", i, rank, stream, s)
				}
			}
		}
	}
	counters := r.Counters()
	if len(counters) != ranks*each {
		t.Errorf("%d counters, want %d", len(counters), ranks*each)
	}
	next := [ranks]int64{}
	for i, c := range counters {
		if c.Value != next[c.Rank] || c.Name != "n" || i > 0 && c.At < counters[i-1].At {
			t.Errorf("counter %d: %+v", i, c)
		}
		next[c.Rank]++
	}
}

func names(t trace.Trace) (names []string) {
	for _, s := range t.Spans {
		names = append(names, s.Name)
	}
	for _, c := range t.Counters {
		names = append(names, c.Name)
	}
	return names
}

func TestPauseAndTake(t *testing.T) {
	r := trace.New()
	over := r.Start(0, "s", "over a pause")
	r.Pause()
	within := r.Start(0, "s", "within a pause")
	r.Count(0, "within a pause", 1)
	over()
	r.Resume()
	within()
	r.Count(0, "after", 1)
	late := r.Start(0, "s", "late")
	want := []string{"over a pause", "after"}
	if got := names(r.Trace()); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if got := names(r.Take()); !slices.Equal(got, want) {
		t.Errorf("taken %q, want %q", got, want)
	}
	late()
	r.Start(0, "s", "new")()
	if got := names(r.Take()); !slices.Equal(got, []string{"new"}) {
		t.Errorf("recorded after Take: %q", got)
	}
}

// What goroutines record while others take it is taken at most once, and all of it that ended between two calls.
func TestTakeAtOnce(t *testing.T) {
	const ranks, each = 4, 500
	r := trace.New()
	var recording, taking sync.WaitGroup
	for rank := range ranks {
		recording.Go(func() {
			for i := range each {
				r.Start(rank, "s", fmt.Sprint(i))()
				r.Count(rank, "n", int64(i))
			}
		})
	}
	done := make(chan struct{})
	var taken trace.Trace
	taking.Go(func() {
		for more := true; more; {
			select {
			case <-done:
				more = false
			default:
			}
			t := r.Take()
			taken.Spans, taken.Counters = append(taken.Spans, t.Spans...), append(taken.Counters, t.Counters...)
		}
	})
	recording.Wait()
	close(done)
	taking.Wait()
	seen := map[string]bool{}
	for _, s := range taken.Spans {
		key := fmt.Sprint(s.Rank, " ", s.Name)
		if seen[key] {
			t.Errorf("span %s was taken twice", key)
		}
		seen[key] = true
	}
	if len(taken.Counters) != ranks*each {
		t.Errorf("%d counters, want %d", len(taken.Counters), ranks*each)
	}
	if rest := r.Take(); len(rest.Spans)+len(rest.Counters) > 0 {
		t.Errorf("left over: %v", rest)
	}
}
