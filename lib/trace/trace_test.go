package trace_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

// One stream brings data while another computes; a fourth of the transfers is not hidden.
func ExampleOverlap() {
	at := func(stream string, start, end int) trace.Span {
		return trace.Span{Stream: stream, Start: time.Duration(start), End: time.Duration(end)}
	}
	spans := []trace.Span{at("compute", 0, 10), at("compute", 14, 20), at("to device", 5, 9), at("to device", 12, 16)}
	transfers, compute := trace.Of(spans, 0, "to device"), trace.Of(spans, 0, "compute")
	fmt.Println(trace.Busy(compute), trace.Overlap(transfers, compute))
	// Output: 16ns 0.75
}

// A recorder that is nil takes everything and has nothing.
func TestNil(t *testing.T) {
	var r *trace.Recorder
	r.Start(0, "compute", "x")()
	r.Count(0, "bytes", 1)
	if s, c := r.Spans(), r.Counters(); s != nil || c != nil {
		t.Errorf("a nil recorder has %v and %v", s, c)
	}
	if n := testing.AllocsPerRun(100, func() { r.Start(0, "compute", "x")(); r.Count(0, "bytes", 1) }); n != 0 {
		t.Errorf("%v allocations of a nil recorder", n)
	}
}

// Every span that ended is there, once, in order, and its times are; one that has not ended is not.
func TestManyGoroutines(t *testing.T) {
	const ranks, each = 8, 50
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
				if want := fmt.Sprint(3*i + stream); s.Name != want || s.Start < 0 || s.End < s.Start || i > 0 && s.Start < names[i-1].End {
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

// Busy and Overlap against a clock that looks at every tick.
func TestAgainstTicks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const ticks = 40
	some := func() (spans []trace.Span, busy [ticks]bool) {
		for range random.IntN(8) {
			start, end := random.IntN(ticks), random.IntN(ticks+1) // some end before they start
			spans = append(spans, trace.Span{Start: time.Duration(start), End: time.Duration(end)})
			for i := start; i < end; i++ {
				busy[i] = true
			}
		}
		return spans, busy
	}
	for range 3000 {
		a, inA := some()
		b, inB := some()
		var ofA, both int
		for i := range ticks {
			if inA[i] {
				ofA++
				if inB[i] {
					both++
				}
			}
		}
		want := 0.0
		if ofA > 0 {
			want = float64(both) / float64(ofA)
		}
		if got := trace.Busy(a); got != time.Duration(ofA) {
			t.Fatalf("Busy(%v) = %d, want %d", a, got, ofA)
		}
		if got := trace.Overlap(a, b); got != want {
			t.Fatalf("Overlap(%v, %v) = %v, want %v", a, b, got, want)
		}
	}
}
