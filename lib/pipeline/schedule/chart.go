package schedule

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/chart"
)

// Chart draws the timeline as a Gantt chart: a row a rank, a colour a pass, and the number of the micro-batch in each bar,
// after the stage where a rank has several. Actions that take no time are left out. Name the axis, with the unit of the
// costs, by its method Axes. Its errors are those of chart.Gantt, which takes a few thousand spans.
func (t Timeline) Chart(title string) *chart.Chart {
	several := false
	for rank := range t.Start {
		several = several || len(t.Schedule.On(rank)) > 1
	}
	var spans []chart.Span
	for _, s := range t.Spans {
		if s.End == s.Start {
			continue
		}
		label := fmt.Sprint(s.Microbatch)
		if several {
			label = fmt.Sprintf("%d:%d", s.Stage, s.Microbatch)
		}
		lane := fmt.Sprint("rank ", s.Rank)
		spans = append(spans, chart.Span{Lane: lane, Label: label, Kind: s.Pass.String(), Start: s.Start, End: s.End})
	}
	return chart.Gantt(title, spans...)
}

// MemoryChart draws what each rank has stashed over time, in the unit of Costs.Activation.
func (t Timeline) MemoryChart(title string) *chart.Chart {
	var lines []chart.Series
	for rank, levels := range t.Memory {
		line := chart.Series{Name: fmt.Sprint("rank ", rank)}
		point := func(at, held float64) { line.X, line.Y = append(line.X, at), append(line.Y, held) }
		held := 0.0
		point(0, 0)
		for _, l := range levels { // a step: straight on, then straight up or down
			point(l.At, held)
			held = l.Held
			point(l.At, held)
		}
		point(t.Makespan, held)
		lines = append(lines, line)
	}
	return chart.Line(title, "time", "stashed activations", lines...)
}
