package schedule

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

// Draw writes the timeline as a picture, a row a rank, as the papers draw it: the number of the micro-batch where a pass
// starts, and b for Backward, i for InputGrad, w for WeightGrad after it, with a line for as long as it lasts; · is idle
// time, and u an update. Where a rank has several stages a capital letter before the number tells which, A for its first.
// A line below the picture says so.
//
// A column is the unit of time that all times are multiples of. If there is none, or the picture would be wider than 960
// characters, it is drawn to scale, with a letter for the pass where a number does not fit. The errors are those of w.
func (t Timeline) Draw(w io.Writer) error {
	out := bufio.NewWriter(w)
	labels, widest, chunks := t.labels()
	unit, columns := t.unit()
	scale, column := 0.0, 1
	if t.Makespan > 0 {
		scale = drawWidth / t.Makespan
	}
	legend := "drawn to scale, with f, b, i, w, u for passes that have no room for a number"
	// A picture of numbers may be wider than one that is drawn to scale, but not without bound.
	if columns > 0 && columns*(widest+1) <= 4*drawWidth {
		column = widest + 1
		scale = float64(column) / unit
		legend = fmt.Sprintf("a column is %.9g", unit)
	}
	margin := len(fmt.Sprint("rank ", len(t.Start)-1))
	drawn := 0
	for rank := range t.Start {
		row := newRow(int(math.Round(t.Makespan * scale)))
		row.idle(column)
		for _, s := range t.Of(rank) {
			row.put(int(math.Round(s.Start*scale)), int(math.Round(s.End*scale)), labels[drawn], s.Pass, column)
			drawn++
		}
		fmt.Fprintf(out, "%-*s │%s\n", margin, fmt.Sprint("rank ", rank), strings.TrimRight(string(row), " "))
	}
	var passes []string
	for _, p := range []Pass{Forward, Backward, InputGrad, WeightGrad, Update} {
		at := slices.IndexFunc(t.Spans, func(s Span) bool { return s.Pass == p && s.End > s.Start })
		if at >= 0 {
			passes = append(passes, fmt.Sprintf("%s %s", labels[at], p))
		}
	}
	if chunks > 1 {
		passes = append(passes, "A, B, … a rank's stages")
	}
	fmt.Fprintf(out, "%s; %s\n", strings.Join(append(passes, "· idle"), ", "), legend)
	return out.Flush()
}

// String is what [Timeline.Draw] writes.
func (t Timeline) String() string {
	var b strings.Builder
	t.Draw(&b) // a Builder has no errors
	return b.String()
}

// labels are what is written into each span, with the length of the longest that takes time, and the most stages of a rank.
func (t Timeline) labels() (labels []string, widest, chunks int) {
	marks := map[Pass]string{Backward: "b", InputGrad: "i", WeightGrad: "w"}
	var stages [][]int
	for rank := range t.Start {
		stages = append(stages, t.Schedule.On(rank))
		chunks = max(chunks, len(stages[rank]))
	}
	for _, s := range t.Spans {
		label := ""
		if chunks > 1 {
			label = letter(slices.Index(stages[s.Rank], s.Stage))
		}
		if s.Pass == Update {
			label += "u"
		} else {
			label += fmt.Sprint(s.Microbatch) + marks[s.Pass]
		}
		labels = append(labels, label)
		if s.End > s.Start {
			widest = max(widest, len(label))
		}
	}
	return labels, widest, chunks
}

// letter counts A to Z, then AA to AZ and so on.
func letter(n int) string {
	text := string(rune('A' + n%26))
	if n >= 26 {
		text = letter(n/26-1) + text
	}
	return text
}

// unit finds a time of which all times are multiples, and how many of it the timeline is long: 0 if there is none.
func (t Timeline) unit() (unit float64, columns int) {
	times := []float64{0}
	for _, s := range t.Spans {
		times = append(times, s.Start, s.End)
	}
	slices.Sort(times)
	shortest := math.Inf(1)
	for i := 1; i < len(times); i++ {
		if !sameTime(times[i-1], times[i]) {
			shortest = min(shortest, times[i]-times[i-1])
		}
	}
	if math.IsInf(shortest, 1) || t.Makespan/shortest > 1e5 {
		return 0, 0
	}
	for part := 1.0; part <= 4; part++ { // the shortest time may itself be a few units
		unit = shortest / part
		if !slices.ContainsFunc(times, func(at float64) bool { return math.Abs(at/unit-math.Round(at/unit)) > 1e-6 }) {
			return unit, int(math.Round(t.Makespan / unit))
		}
	}
	return 0, 0
}

// row is a line of a picture.
type row []rune

func newRow(width int) row { return row(strings.Repeat(" ", width)) }

// idle puts a dot into each column.
func (r row) idle(column int) {
	for at := 0; at < len(r); at += column {
		r[at] = '·'
	}
}

// put draws a span: its label, or a letter for its pass where that does not fit, a line as long as it lasts if that is
// more than a column, and a gap.
func (r row) put(from, to int, label string, pass Pass, column int) {
	to = min(to, len(r))
	if from >= to {
		return
	}
	text := []rune(strings.Repeat("─", to-from))
	if len(label) >= len(text) {
		label = strings.ToLower(string(rune(pass)))
	} else if len(text) <= column {
		text = []rune(strings.Repeat(" ", to-from))
	}
	copy(text, []rune(label))
	if len(text) > 1 {
		text[len(text)-1] = ' '
	}
	copy(r[from:], text)
}
