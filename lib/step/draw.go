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

// drawWidth is how many characters wide a picture is where labels have no room.
const drawWidth = 240

// draw writes the timeline as a picture, a row a rank, as the papers draw it: the number of the micro-batch where a
// pass starts, and b for Backward, i for InputGrad, w for WeightGrad, r for Recompute after it, with a line for as
// long as it lasts; · is idle time, and u an update. Where a rank has several blocks a capital letter before the
// number tells which, A for its first. Below the rank are the streams of what takes time beside the passes, with the
// operations' first numbers and a letter. A line below the picture says so.
//
// All is to scale. A column is the shortest time that an operation takes, with room for its label. Where that would
// make the picture wider than 960 characters, what has no room for its label has a letter alone. The errors are those
// of w.
func (t Timeline) draw(w io.Writer) error {
	out := bufio.NewWriter(w)
	rows := t.Rows()
	margin, widest, several := 0, 0, false
	shortest, end := math.Inf(1), 0.0
	words := map[Kind]string{} // of each kind, the first label
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

// put draws a span: its label, or a letter for its kind where that does not fit, a line as long as it lasts if that is
// more than a column, and a gap.
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

// String draws the timeline as text, one line per rank, as the papers draw it.
func (t Timeline) String() string {
	var b strings.Builder
	t.draw(&b) // a Builder has no errors
	return b.String()
}

// Row is a row of a picture: the passes of a rank, or one of its streams.
type Row struct {
	Rank   int
	Name   string // "rank 0", or the stream below it
	Spans  []Span
	Labels []string // of each span, as String draws it
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
