package trace_test

import (
	"fmt"
	"math/rand/v2"
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

const ticks = 40

// someSpans returns a few spans, some of which end before they start, and the ticks in which one of them runs.
func someSpans(random *rand.Rand) (spans []trace.Span, busy [ticks]bool) {
	for range random.IntN(8) {
		start, end := random.IntN(ticks), random.IntN(ticks+1)
		spans = append(spans, trace.Span{Start: time.Duration(start), End: time.Duration(end)})
		for i := start; i < end; i++ {
			busy[i] = true
		}
	}
	return spans, busy
}

// Busy and Overlap against a clock that looks at every tick.
func TestAgainstTicks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		a, inA := someSpans(random)
		b, inB := someSpans(random)
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
