package step

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// drawWidth is the width of a drawing whose passes have no room for labels, in characters.
const drawWidth = 240

// draw draws the timeline as text, one row per rank, to scale, as the papers do: a pass is the number of its
// micro-batch, then b for Backward, i for InputGrad, w for WeightGrad or r for Recompute, then a line as long as the
// pass takes; · is idle time, u an update. If ranks have several blocks, a capital letter tells which: A for the rank's
// first. Below a rank are its transfer streams. The last line explains the letters.
//
// A column is the shortest operation. If the drawing would then be wider than 960 characters, operations without room
// for a label are one letter. Errors are the writer's.
func (t Timeline) draw(w io.Writer) error {
	out := bufio.NewWriter(w)
	rows := t.Rows()
	margin, widest, several := 0, 0, false
	shortest, end := math.Inf(1), 0.0
	words := map[Kind]string{} // the first label of each kind
	for _, row := range rows {
		margin, several = max(margin, len(row.Name)), several || len(t.Plan.On(row.Rank)) > 1
		for i, s := range row.Spans {
			if s.End > s.Start {
				widest, shortest, end = max(widest, len(row.Labels[i])), min(shortest, s.End-s.Start), max(end, s.End)
				words[s.Kind] = cmp.Or(words[s.Kind], row.Labels[i]+" "+s.Kind.String())
			}
		}
	}
	column, legend := widest+1, fmt.Sprintf("a column is %.9g", shortest)
	scale := float64(column) / shortest
	if !(end*scale <= 4*drawWidth) || end == 0 {
		column, scale = 1, drawWidth/cmp.Or(end, math.Inf(1))
		legend = "drawn to scale, with f, b, i, w, u for passes that have no room for a number"
	}
	for _, row := range rows {
		line := make([]rune, int(math.Round(end*scale)))
		for i := range line {
			if line[i] = ' '; i%column == 0 {
				line[i] = '·'
			}
		}
		at := func(time float64) int { return min(int(math.Round(time*scale)), len(line)) }
		for i, s := range row.Spans {
			put(line[at(s.Start):at(s.End)], row.Labels[i], s.Kind, column)
		}
		fmt.Fprintf(out, "%-*s │%s\n", margin, row.Name, strings.TrimRight(string(line), " "))
	}
	for _, of := range kinds {
		if words[of.kind] != "" {
			fmt.Fprintf(out, "%s, ", words[of.kind])
		}
	}
	if several {
		fmt.Fprint(out, "A, B, … a rank's blocks, ")
	}
	fmt.Fprintf(out, "· idle; %s\n", legend)
	return out.Flush()
}

// put draws a span: its label, or one letter if that does not fit, then a line, then a gap.
func put(span []rune, label string, kind Kind, column int) {
	fill := '─'
	if len(label) >= len(span) {
		label = strings.ToLower(string(rune(kind)))
	} else if len(span) <= column {
		fill = ' '
	}
	for i := range span {
		if span[i] = fill; i > 0 && i == len(span)-1 {
			span[i] = ' '
		}
	}
	copy(span, []rune(label))
}

// String draws the timeline as text, one row per rank.
func (t Timeline) String() string {
	var b strings.Builder
	t.draw(&b) // a Builder returns no errors
	return b.String()
}

// Row is a row of a drawing: the passes of a rank, or one of its transfer streams.
type Row struct {
	Rank   int
	Name   string // "rank 0", or the stream's name, indented
	Spans  []Span
	Labels []string // of each span, as String draws them
}

// Rows returns a row for each rank, each followed by the rank's streams that take time. Messages are on the sender's
// row.
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

// label is the text in a span.
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
