package step

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/trace"
)

// drawWidth is how many characters wide a picture may be where its scale is free.
const drawWidth = 240

// Draw writes the timeline as a picture, a row a rank, as the papers draw it: the number of the micro-batch where a
// pass starts, and b for Backward, i for InputGrad, w for WeightGrad, r for Recompute after it, with a line for as
// long as it lasts; · is idle time, and u an update. Where a rank has several blocks a capital letter before the
// number tells which, A for its first. Below the rank are the streams of what takes time beside the passes, with the
// operations' first numbers and a letter. A line below the picture says so.
//
// A column is the unit of time that all times are multiples of. If there is none, or the picture would be wider than
// 960 characters, it is drawn to scale, with a letter for the pass where a number does not fit. The errors are those
// of w.
func (t Timeline) Draw(w io.Writer) error {
	out := bufio.NewWriter(w)
	rows, widest, end := t.rows()
	unit, columns := unit(rows, end)
	scale, column := 0.0, 1
	if end > 0 {
		scale = drawWidth / end
	}
	legend := "drawn to scale, with f, b, i, w, u for passes that have no room for a number"
	// A picture of numbers may be wider than one that is drawn to scale, but not without bound.
	if columns > 0 && columns*(widest+1) <= 4*drawWidth {
		column = widest + 1
		scale = float64(column) / unit
		legend = fmt.Sprintf("a column is %.9g", unit)
	}
	margin, blocks := 0, 0
	for _, row := range rows {
		margin, blocks = max(margin, len(row.name)), max(blocks, row.blocks)
	}
	var words []string
	said := map[Kind]bool{Recv: true}
	for _, row := range rows {
		line := newLine(int(math.Round(end*scale)), column)
		for i, s := range row.spans {
			line.put(int(math.Round(s.Start*scale)), int(math.Round(s.End*scale)), row.labels[i], s.Kind, column)
		}
		fmt.Fprintf(out, "%-*s │%s\n", margin, row.name, strings.TrimRight(string(line), " "))
	}
	for _, k := range []Kind{
		Forward, Backward, InputGrad, WeightGrad, Recompute, Update, Send, Gather, Reduce, Store, Fetch,
	} {
		for _, row := range rows {
			at := slices.IndexFunc(row.spans, func(s Span) bool { return s.Kind == k && s.End > s.Start })
			if at >= 0 && !said[k] {
				said[k] = true
				words = append(words, fmt.Sprintf("%s %s", row.labels[at], k))
			}
		}
	}
	if blocks > 1 {
		words = append(words, "A, B, … a rank's blocks")
	}
	fmt.Fprintf(out, "%s; %s\n", strings.Join(append(words, "· idle"), ", "), legend)
	return out.Flush()
}

// String is what [Timeline.Draw] writes.
func (t Timeline) String() string {
	var b strings.Builder
	t.Draw(&b) // a Builder has no errors
	return b.String()
}

// row is a stream of a rank, for a picture.
type row struct {
	name   string
	blocks int // of the rank
	spans  []Span
	labels []string
}

// rows returns a row for each rank, and behind it one for each of its streams that take time, with the length of the
// longest label and the end of all.
func (t Timeline) rows() (rows []row, widest int, end float64) {
	blocks := make([][]int, len(t.Start))
	several := false
	for r := range blocks {
		blocks[r] = t.Plan.On(r)
		several = several || len(blocks[r]) > 1
	}
	for r := range blocks {
		rows = append(rows, row{name: fmt.Sprint("rank ", r), blocks: len(blocks[r]), spans: t.Of(r)})
		for _, s := range spansOf(t.Transfers, r) {
			if s.End == s.Start || s.Kind == Recv {
				continue
			}
			if name := "  " + s.Stream(); rows[len(rows)-1].name != name {
				rows = append(rows, row{name: name})
			}
			last := &rows[len(rows)-1]
			last.spans = append(last.spans, s)
		}
	}
	for i := range rows {
		for _, s := range rows[i].spans {
			label := s.label(blocks[s.Rank], several)
			rows[i].labels = append(rows[i].labels, label)
			if end = max(end, s.End); s.End > s.Start {
				widest = max(widest, len(label))
			}
		}
	}
	return rows, widest, end
}

// label is what is written into a span.
func (s Span) label(blocks []int, several bool) (label string) {
	mark := strings.ToLower(string(rune(s.Kind)))
	if s.Kind == Forward {
		mark = ""
	}
	if !(verb{s.Kind, s.What}).ofBlock() {
		if s.Unit >= 0 && (s.Kind != Update || several) {
			label = fmt.Sprint(s.Unit)
		}
		return label + mark
	}
	if several && s.Kind.Pass() {
		label = letter(slices.Index(blocks, s.Block))
	}
	return label + fmt.Sprint(s.Micro) + mark
}

// letter counts A to Z, then AA to AZ and so on.
func letter(n int) string {
	text := string(rune('A' + n%26))
	if n >= 26 {
		text = letter(n/26-1) + text
	}
	return text
}

// unit finds a time of which all times are multiples, and how many of it the rows are long: 0 if there is none.
func unit(rows []row, end float64) (unit float64, columns int) {
	times := []float64{0}
	for _, row := range rows {
		for _, s := range row.spans {
			times = append(times, s.Start, s.End)
		}
	}
	slices.Sort(times)
	shortest := math.Inf(1)
	for i := 1; i < len(times); i++ {
		if !sameTime(times[i-1], times[i]) {
			shortest = min(shortest, times[i]-times[i-1])
		}
	}
	if math.IsInf(shortest, 1) || end/shortest > 1e5 {
		return 0, 0
	}
	for part := 1.0; part <= 4; part++ { // the shortest time may itself be a few units
		unit = shortest / part
		if !slices.ContainsFunc(times, func(at float64) bool { return math.Abs(at/unit-math.Round(at/unit)) > 1e-6 }) {
			return unit, int(math.Round(end / unit))
		}
	}
	return 0, 0
}

// line is a line of a picture.
type line []rune

// newLine returns a line with a dot in each column.
func newLine(width, column int) line {
	l := line(strings.Repeat(" ", width))
	for at := 0; at < width; at += column {
		l[at] = '·'
	}
	return l
}

// put draws a span: its label, or a letter for its kind where that does not fit, a line as long as it lasts if that is
// more than a column, and a gap.
func (l line) put(from, to int, label string, kind Kind, column int) {
	to = min(to, len(l))
	if from >= to {
		return
	}
	text := []rune(strings.Repeat("─", to-from))
	if len(label) >= len(text) {
		label = strings.ToLower(string(rune(kind)))
	} else if len(text) <= column {
		text = []rune(strings.Repeat(" ", to-from))
	}
	copy(text, []rune(label))
	if len(text) > 1 {
		text[len(text)-1] = ' '
	}
	copy(l[from:], text)
}

// Chart draws the timeline as a Gantt chart: a row a rank, and one for each of its streams that take time, a colour a
// kind of operation, and the number of the micro-batch in each bar, after the block where a rank has several. What
// takes no time is left out. Name the axis, with the unit of the costs, by its method Axes. Its errors are those of
// chart.Gantt, which takes a few thousand spans.
func (t Timeline) Chart(title string) *chart.Chart {
	rows, _, _ := t.rows()
	several := slices.ContainsFunc(rows, func(r row) bool { return r.blocks > 1 })
	var spans []chart.Span
	for _, row := range rows {
		for i, s := range row.spans {
			if s.End == s.Start {
				continue
			}
			label, lane := row.labels[i], fmt.Sprint("rank ", s.Rank)
			if !s.Kind.Pass() {
				lane += row.name[1:]
			} else if label = fmt.Sprint(s.Micro); several && s.Kind != Update {
				label = fmt.Sprintf("%d:%d", s.Block, s.Micro)
			}
			spans = append(spans, chart.Span{Lane: lane, Label: label, Kind: s.Kind.String(), Start: s.Start, End: s.End})
		}
	}
	return chart.Gantt(title, spans...)
}

// MemoryChart draws what each rank saves over time, in the unit of Costs.Activation.
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
	return chart.Line(title, "time", "saved activations", lines...)
}

// Trace is the timeline as a trace, in which a time of 1 takes unit: for trace.Trace.WriteChrome, and for
// trace.Timelines, which draws it above a trace that was measured. Passes are on the stream trace.Compute, others on
// that of their [Op.Stream], and have the names of [Plan.Text]. What takes no time is left out. A unit that is not
// above 0, or so long that the times do not fit a time.Duration, is an error.
func (t Timeline) Trace(unit time.Duration) (trace.Trace, error) {
	rows, _, end := t.rows()
	if unit <= 0 || end*float64(unit) > math.MaxInt64/2 {
		return trace.Trace{}, fmt.Errorf("step: a trace of %g units of %v: choose a unit above 0, and at most %v",
			end, unit, time.Duration(math.MaxInt64/2/max(1, end)))
	}
	at := func(x float64) time.Duration { return time.Duration(math.Round(x * float64(unit))) }
	var spans []trace.Span
	for _, row := range rows {
		for _, s := range row.spans {
			if s.End > s.Start {
				spans = append(spans, trace.Span{Rank: s.Rank, Stream: s.Stream(), Name: t.Plan.Text(s.Op),
					Start: at(s.Start), End: at(s.End)})
			}
		}
	}
	return trace.Trace{Spans: spans}, nil
}
