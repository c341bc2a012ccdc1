package trace_test

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

// someTrace returns a trace of a few ranks, streams, names and counts, with times below ticks and none backwards.
func someTrace(random *rand.Rand) (t trace.Trace) {
	pick := func(names ...string) string { return names[random.IntN(len(names))] }
	for range random.IntN(20) {
		start := random.IntN(ticks)
		t.Spans = append(t.Spans, trace.Span{
			Rank: random.IntN(4) - 1, Stream: pick(trace.Compute, trace.Send, "own"), Name: pick("a", "b", "c"),
			Start: time.Duration(start), End: time.Duration(start + random.IntN(ticks-start)),
			Work: trace.Work{FLOPs: random.Int64N(3), Bytes: random.Int64N(3)},
			Flow: random.Int64N(4), Detail: pick("", "grid 1", "grid 2"),
		})
	}
	for range random.IntN(20) {
		t.Counters = append(t.Counters, trace.Counter{
			Rank: random.IntN(2), Name: pick("live", "sent"), At: time.Duration(random.IntN(ticks)),
			Value: random.Int64() - 1<<62,
		})
	}
	sortTrace(t)
	return t
}

// sortTrace puts a trace into the order that a recorder gives.
func sortTrace(t trace.Trace) {
	slices.SortStableFunc(t.Spans, func(a, b trace.Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start),
			cmp.Compare(a.End, b.End))
	})
	slices.SortStableFunc(t.Counters, func(a, b trace.Counter) int { return cmp.Compare(a.At, b.At) })
}

func TestRangeAndShift(t *testing.T) {
	if from, to := (trace.Trace{}).Range(); from != 0 || to != 0 {
		t.Errorf("the range of nothing is %v to %v", from, to)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		of := someTrace(random)
		var times []time.Duration
		for _, s := range of.Spans {
			times = append(times, s.Start, s.End)
		}
		for _, c := range of.Counters {
			times = append(times, c.At)
		}
		if len(times) == 0 {
			continue
		}
		before := trace.Trace{Spans: slices.Clone(of.Spans), Counters: slices.Clone(of.Counters)}
		from, to := of.Shift(-5).Range()
		if want := slices.Min(times) - 5; from != want {
			t.Fatalf("%+v begins at %v, want %v", of, from, want)
		}
		if want := slices.Max(times) - 5; to != want {
			t.Fatalf("%+v ends at %v, want %v", of, to, want)
		}
		if !reflect.DeepEqual(of, before) {
			t.Fatalf("Shift made %+v of %+v", of, before)
		}
	}
}

// Within, looked at tick by tick.
func TestWithin(t *testing.T) {
	// spansAt counts spans that run in the tick, by all that they say but when.
	spansAt := func(t trace.Trace, tick time.Duration) map[trace.Span]int {
		at := map[trace.Span]int{}
		for _, s := range t.Spans {
			if s.Start <= tick && tick < s.End {
				s.Start, s.End = 0, 0
				at[s]++
			}
		}
		return at
	}
	countsAt := func(t trace.Trace, tick time.Duration) map[string]int64 {
		at := map[string]int64{}
		for _, c := range t.Counters {
			if c.At <= tick {
				at[string(rune('0'+c.Rank))+c.Name] = c.Value
			}
		}
		return at
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		all := someTrace(random)
		from, to := time.Duration(random.IntN(ticks)), time.Duration(random.IntN(ticks))
		in := all.Within(from, to)
		for tick := from; tick < to; tick++ {
			if got, want := spansAt(in, tick-from), spansAt(all, tick); !reflect.DeepEqual(got, want) {
				t.Fatalf("at %d of %+v within %d to %d: spans %v, want %v", tick, all, from, to, got, want)
			}
			if got, want := countsAt(in, tick-from), countsAt(all, tick); !reflect.DeepEqual(got, want) {
				t.Fatalf("at %d of %+v within %d to %d: counts %v, want %v", tick, all, from, to, got, want)
			}
		}
		for _, s := range in.Spans {
			if s.Start < 0 || s.End < s.Start || s.End > to-from {
				t.Fatalf("%+v is not within %d to %d", s, from, to)
			}
		}
		for _, c := range in.Counters {
			if c.At < 0 || c.At >= to-from {
				t.Fatalf("%+v is not within %d to %d", c, from, to)
			}
		}
	}
	moment := trace.Trace{Spans: []trace.Span{{Name: "moment", Start: 3, End: 3}}}
	if n := len(moment.Within(3, 4).Spans) + len(moment.Within(2, 3).Spans); n != 1 {
		t.Errorf("of two stretches that meet in it, %d have a span without length", n)
	}
}
