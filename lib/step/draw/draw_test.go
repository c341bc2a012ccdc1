package draw_test

import (
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/step/draw"
	"github.com/shardbook/shardbook/lib/trace"
)

const (
	dualpipe = "schedule dualpipe stages=2\nrank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1 0U3 1U3\n" +
		"rank 1: 0F2 1F0 0F3 1B0 1F1 0B2 1B1 0I3 0W3 0U3 1U3"
	zbh1 = "schedule zb-h1\nrank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 0U2\nrank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 " +
		"1W2 1U2"
)

func simulated(t *testing.T, text string) step.Timeline {
	t.Helper()
	p := must.Get(step.Parse(text))(t)
	timeline := must.Get(p.Simulate(step.Equal()))(t)
	return timeline
}

// TestCharts checks what the charts show, in their plain form, and that they can be drawn.
func TestCharts(t *testing.T) {
	timeline := simulated(t, dualpipe)
	for _, test := range []struct {
		chart *chart.Chart
		want  []string
	}{
		{draw.Chart(timeline, "passes"),
			[]string{"rank 0", "rank 1", "forward", "backward", "input gradient", "weight gradient"}},
		{draw.Memory(timeline, "memory"), []string{"rank 1"}},
	} {
		if err := test.chart.Err(); err != nil {
			t.Error(err)
		}
		for _, want := range test.want {
			if text := test.chart.Text(); !strings.Contains(text, want) {
				t.Errorf("the chart does not have %q:\n%s", want, text)
			}
		}
	}
}

// TestTrace checks that a trace has the spans of the timeline, and survives its file.
func TestTrace(t *testing.T) {
	timeline := simulated(t, zbh1)
	tr := must.Get(draw.Trace(timeline, time.Millisecond))(t)
	var file strings.Builder
	must.Do(t, tr.WriteChrome(&file))
	back := must.Get(trace.ReadChrome(strings.NewReader(file.String())))(t)
	count := 0
	for r := range timeline.Start {
		spans := trace.Of(back.Spans, r, trace.Compute)
		for i, s := range timeline.Of(r) {
			if s.Kind == step.Update { // takes no time
				continue
			}
			got := spans[i]
			if got.Name != timeline.Plan.Text(s.Op) || got.Start != time.Duration(s.Start)*time.Millisecond ||
				got.End != time.Duration(s.End)*time.Millisecond {
				t.Errorf("rank %d: %+v, want %+v", r, got, s)
			}
			count++
		}
	}
	if count != len(back.Spans) || count != 3*2*3 {
		t.Errorf("%d spans, %d in the file, want 18", count, len(back.Spans))
	}
	for _, unit := range []time.Duration{0, -1, 1 << 62} {
		if _, err := draw.Trace(timeline, unit); err == nil || !strings.Contains(err.Error(), "choose a unit") {
			t.Errorf("unit %d: error %v", unit, err)
		}
	}
}
