package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
)

// Named is a trace with a name, for charts that compare several.
type Named struct {
	Name  string
	Trace Trace
}

// Timeline draws a trace over time (ms): a row per stream of each rank, a colour per stream.
func (t Trace) Timeline(title string) *chart.Chart {
	return Timelines(title, func(s Span) string { return s.Stream }, Named{Trace: t})
}

// Timelines draws several traces below each other on one time axis (ms). To compare one step of each, cut them with
// [Trace.Within] first. kind returns the legend entry of a span, which sets its colour. For separate charts with equal
// axes see [chart.Chart.Range].
//
// Neighbouring spans of one row and kind that are too short to be seen are drawn as one, since there may be very many.
func Timelines(title string, kind func(Span) string, runs ...Named) *chart.Chart {
	var all Trace
	for _, run := range runs {
		all.Spans = append(all.Spans, run.Trace.Spans...)
	}
	from, to := all.Range()
	several := slices.ContainsFunc(all.Spans, func(s Span) bool { return s.Rank != all.Spans[0].Rank })
	var bars []chart.Span
	for _, run := range runs {
		for _, stream := range byStream(run.Trace.Spans) {
			lane := cmp.Or(stream[0].Stream, "-")
			switch rank := stream[0].Rank; {
			case several && run.Name != "":
				lane = run.Name + ": " + strings.TrimPrefix(process(rank), "rank ") + " " + lane
			case several:
				lane = process(rank) + " " + lane
			case run.Name != "":
				lane = run.Name + ": " + lane
			}
			for _, s := range joinShort(stream, kind, (to-from)/1000) {
				bars = append(bars, chart.Span{Lane: lane, Label: s.Name, Kind: cmp.Or(kind(s), "-"),
					Start: ms(s.Start), End: ms(s.End)})
			}
		}
	}
	return chart.Gantt(title, bars...).Axes("time (ms)", "")
}

// joinShort merges spans of a kind that are shorter than a pixel and less than a pixel apart.
func joinShort(sorted []Span, kind func(Span) string, pixel time.Duration) (joined []Span) {
	last := map[string]int{} // where the last short one of a kind is
	for _, s := range sorted {
		k := kind(s)
		i, ok := last[k]
		switch short := s.End-s.Start < pixel; {
		case short && ok && s.Start-joined[i].End < pixel:
			joined[i].Name, joined[i].End = "", max(joined[i].End, s.End)
			continue
		case short:
			last[k] = len(joined)
		default:
			delete(last, k)
		}
		joined = append(joined, s)
	}
	return joined
}
