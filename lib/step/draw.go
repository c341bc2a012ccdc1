package step

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
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
	rows := t.Rows()
	margin, widest, end, blocks := 0, 0, 0.0, 0
	for _, row := range rows {
		margin, blocks = max(margin, len(row.Name)), max(blocks, len(t.Plan.On(row.Rank)))
		for i, s := range row.Spans {
			if end = max(end, s.End); s.End > s.Start {
				widest = max(widest, len(row.Labels[i]))
			}
		}
	}
	unit, columns := unit(rows, end)
	scale, column := 0.0, 1
	legend := "drawn to scale, with f, b, i, w, u for passes that have no room for a number"
	if end > 0 {
		scale = drawWidth / end
	}
	// A picture of numbers may be wider than one that is drawn to scale, but not without bound.
	if columns > 0 && columns*(widest+1) <= 4*drawWidth {
		column = widest + 1
		scale = float64(column) / unit
		legend = fmt.Sprintf("a column is %.9g", unit)
	}
	for _, row := range rows {
		line := newLine(int(math.Round(end*scale)), column)
		for i, s := range row.Spans {
			line.put(int(math.Round(s.Start*scale)), int(math.Round(s.End*scale)), row.Labels[i], s.Kind, column)
		}
		fmt.Fprintf(out, "%-*s │%s\n", margin, row.Name, strings.TrimRight(string(line), " "))
	}
	words := kindLabels(rows)
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

// kindLabels are the kinds of operations that take time, each with the first label that it has.
func kindLabels(rows []Row) (words []string) {
	for _, k := range []Kind{
		Forward, Backward, InputGrad, WeightGrad, Recompute, Update, Send, Gather, Reduce, Store, Fetch,
		HostUpdate,
	} {
		for _, row := range rows {
			at := slices.IndexFunc(row.Spans, func(s Span) bool { return s.Kind == k && s.End > s.Start })
			if at >= 0 {
				words = append(words, fmt.Sprintf("%s %s", row.Labels[at], k))
				break
			}
		}
	}
	return words
}

// Row is a row of a picture: the passes of a rank, or one of its streams.
type Row struct {
	Rank   int
	Name   string // "rank 0", or the stream below it
	Spans  []Span
	Labels []string // of each span, as [Timeline.Draw] writes it
}

// Rows returns a row for each rank, and behind it one for each of its streams that take time. A message is on the row
// of the rank that sends it.
func (t Timeline) Rows() (rows []Row) {
	blocks, several := make([][]int, len(t.Start)), false
	for r := range blocks {
		blocks[r] = t.Plan.On(r)
		several = several || len(blocks[r]) > 1
	}
	add := func(name string, s ...Span) {
		if n := len(rows); n == 0 || rows[n-1].Name != name {
			rows = append(rows, Row{Name: name})
		}
		last := &rows[len(rows)-1]
		for _, s := range s {
			last.Rank, last.Spans = s.Rank, append(last.Spans, s)
			last.Labels = append(last.Labels, s.label(blocks[s.Rank], several))
		}
	}
	for r := range blocks {
		add(fmt.Sprint("rank ", r), t.Of(r)...)
		for _, s := range spansOf(t.Transfers, r) {
			if s.End > s.Start && s.Kind != Recv {
				add("  "+s.Stream(), s)
			}
		}
	}
	return rows
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
func unit(rows []Row, end float64) (unit float64, columns int) {
	times := []float64{0}
	for _, row := range rows {
		for _, s := range row.Spans {
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
