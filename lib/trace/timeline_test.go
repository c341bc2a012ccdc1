package trace_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

func ExampleTrace_Timeline() {
	fmt.Print(step().Timeline("a step of two ranks").Text())
	// Output:
	// a step of two ranks
	// time (ms), 0 … 9: C compute, R reduce, W wait
	// rank 0 compute  CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC····················
	// rank 0 reduce   ··························RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR
	// rank 0 wait     ········································WWWWWWWWWWWWWWWWWWWW
	// rank 1 compute  CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC·······
	// rank 1 reduce   ········································RRRRRRRRRRRRRRRRRRRR
	// rank 1 wait     ·····················································WWWWWWW
}

// Two ways to do the same on one axis, each cut to what is compared.
func ExampleTimelines() {
	const ms = time.Millisecond
	at := func(stream, name string, start, end time.Duration) trace.Span {
		return trace.Span{Stream: stream, Name: name, Start: start * ms, End: end * ms}
	}
	naive := trace.Trace{Spans: []trace.Span{at("compute", "backward", 100, 106), at("reduce", "all", 106, 110)}}
	overlapped := trace.Trace{Spans: []trace.Span{
		at("compute", "backward", 50, 56), at("reduce", "h1", 53, 55), at("reduce", "h0", 56, 58),
	}}
	fmt.Print(trace.Timelines("gradients", func(s trace.Span) string { return s.Name },
		trace.Named{Name: "naive", Trace: naive.Within(100*ms, 110*ms)},
		trace.Named{Name: "overlapped", Trace: overlapped.Within(50*ms, 60*ms)}).Text())
	// Output:
	// gradients
	// time (ms), 0 … 10: B backward, A all, H h1, 0 h0
	// naive: compute       BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB························
	// naive: reduce        ····································AAAAAAAAAAAAAAAAAAAAAAAA
	// overlapped: compute  BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB························
	// overlapped: reduce   ··················HHHHHHHHHHHH······000000000000············
}

func ExampleTrace_Counts() {
	fmt.Print(step().Counts("memory", "live arrays (MB)", 1e6).Text())
	// Output:
	// memory
	// live arrays (MB) over time (ms), 0 … 9
	// rank 0 live  ▁▁██▁▁  40 → 40
	// rank 1 live  ▁▁██▁▁  40 → 40
}

// Several runs of several ranks, odd names, and far more spans than a chart holds.
func TestTimelines(t *testing.T) {
	both := trace.Timelines("t", func(s trace.Span) string { return s.Stream },
		trace.Named{Name: "a", Trace: step()}, trace.Named{Name: "b", Trace: step()})
	for _, want := range []string{"a: 0 compute", "a: 1 wait", "b: 0 compute"} {
		if text := both.Text(); !strings.Contains(text, want) {
			t.Errorf("no row %q in\n%s", want, text)
		}
	}
	if err := (trace.Trace{Spans: []trace.Span{{End: 1}}}).Timeline("no names").Err(); err != nil {
		t.Error(err)
	}
	if err := (trace.Trace{}).Timeline("nothing").Err(); err == nil {
		t.Error("no error of a time line of nothing")
	}
	random := rand.New(rand.NewPCG(13, 14))
	var many trace.Trace
	for i := range 40_000 {
		start := time.Duration(i) * 100
		many.Spans = append(many.Spans, trace.Span{Rank: i % 4, Stream: trace.Compute, Start: start,
			End: start + time.Duration(random.IntN(100))})
	}
	if err := many.Timeline("many").Err(); err != nil {
		t.Error(err)
	}
}

// What is joined in a time line is too short to be seen, and covers the columns that it did. Text has 60 columns, here
// of 1000 ns, and a thousandth of the time is a pixel.
func TestShortSpansStayInSight(t *testing.T) {
	const pixel = 60
	spans := []trace.Span{
		{Stream: "s", Name: "long", Start: 54_500, End: 60_000},
		{Stream: "s", Name: "alone", Start: 30_500, End: 30_501},
	}
	for i := range time.Duration(201) { // side by side in the first fifth
		spans = append(spans, trace.Span{Stream: "s", Name: "short", Start: i * pixel, End: i*pixel + pixel/2})
	}
	text := trace.Trace{Spans: spans}.Timeline("t").Text()
	want := "s  " + strings.Repeat("S", 12) + strings.Repeat("·", 18) + "S" + strings.Repeat("·", 23) + "SSSSSS"
	if !strings.Contains(text, want) {
		t.Errorf("the time line is\n%s, without\n%s", text, want)
	}
	// One row: nothing overlaps that did not before.
	if n := strings.Count(text, "\n"); n != 3 {
		t.Errorf("%d lines in\n%s", n, text)
	}
}

// A count's line goes from each value to the next, and the last to the end.
func TestCounts(t *testing.T) {
	c := step()
	if err := c.Counts("t", "MB", 1e6, "live").Range(0, 9).Err(); err != nil {
		t.Error(err) // the lines end where the spans do
	}
	if err := c.Counts("t", "MB", 1e6, "live").Range(0, 8.9).Err(); err == nil {
		t.Error("the lines end before the trace does")
	}
	if err := c.Counts("t", "MB", 1e6, "other").Err(); err == nil {
		t.Error("no error of a count that is not there")
	}
	c.Counters = c.Counters[:1]
	if text := c.Counts("t", "MB", 1e6).Text(); !strings.Contains(text, "\nlive  ▁▁  40 → 40") {
		t.Errorf("one rank's count is\n%s", text)
	}
}
