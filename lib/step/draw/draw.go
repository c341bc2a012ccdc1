// Package draw makes charts and traces of simulated training steps. It is apart from package step so that programs
// which only run plans do not link the charts.
package draw

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
)

// Chart draws a timeline as a Gantt chart: a row for each rank and for each of its transfer streams, a colour per kind
// of operation, and the labels of [step.Timeline.Rows]. Operations that take no time are left out. Name the time axis,
// with the unit of the costs, by the chart's method Axes. Errors are those of chart.Gantt, which takes a few thousand
// spans.
func Chart(t step.Timeline, title string) *chart.Chart {
	var spans []chart.Span
	for _, row := range t.Rows() {
		lane := row.Name
		if stream, ok := strings.CutPrefix(lane, "  "); ok {
			lane = fmt.Sprintf("rank %d %s", row.Rank, stream)
		}
		for i, s := range row.Spans {
			if s.End > s.Start {
				spans = append(spans, chart.Span{Lane: lane, Label: row.Labels[i], Kind: s.Kind.String(),
					Start: s.Start, End: s.End})
			}
		}
	}
	return chart.Gantt(title, spans...)
}

// Memory draws the activations that each rank saves over time, in the unit of Costs.Activation.
func Memory(t step.Timeline, title string) *chart.Chart {
	var lines []chart.Series
	for rank, levels := range t.Memory {
		line := chart.Series{Name: fmt.Sprint("rank ", rank)}
		held := 0.0
		point := func(at float64) { line.X, line.Y = append(line.X, at), append(line.Y, held) }
		point(0)
		for _, l := range levels { // horizontal, then vertical
			point(l.At)
			held = l.Held
			point(l.At)
		}
		point(t.Makespan)
		lines = append(lines, line)
	}
	return chart.Line(title, "time", "saved activations", lines...)
}

// Trace converts a timeline to a trace in which a time of 1 takes unit, for trace.Trace.WriteChrome, and for
// trace.Timelines, which draws it above a measured trace. Passes are on the stream trace.Compute, other operations on
// their [step.Op.Stream]; names are those of [step.Plan.Text]. Operations that take no time are left out. It returns an
// error if unit is not above 0, or so long that times overflow time.Duration.
func Trace(t step.Timeline, unit time.Duration) (trace.Trace, error) {
	var spans []trace.Span
	at := func(x float64) time.Duration { return time.Duration(math.Round(x * float64(unit))) }
	for _, row := range t.Rows() {
		for _, s := range row.Spans {
			if unit <= 0 || s.End*float64(unit) > math.MaxInt64/2 {
				return trace.Trace{},
					fmt.Errorf("step: a trace of %g units of %v: choose a unit above 0, and at most %v",
						s.End, unit, time.Duration(math.MaxInt64/2/max(1, s.End)))
			}
			if s.End > s.Start {
				spans = append(spans, trace.Span{Rank: s.Rank, Stream: s.Stream(), Name: t.Plan.Text(s.Op),
					Start: at(s.Start), End: at(s.End)})
			}
		}
	}
	return trace.Trace{Spans: spans}, nil
}
