package step

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lineWidth is the maximal width of a plan's lines, in characters.
const lineWidth = 100

// Blocks returns n blocks without names, each with a unit of its own: a pipeline's stages.
func Blocks(n int) (blocks []Block, units []Unit) {
	blocks, units = make([]Block, n), make([]Unit, n)
	for b := range blocks {
		blocks[b].Units = []int{b}
	}
	return blocks, units
}

// String writes the plan as text, which [Parse] reads. A pipeline's schedule, whose blocks have one unit each, is
//
//	schedule 1f1b stages=2 microbatches=2 every=2 weights=flush
//	rank 0: 0F0 0F1 0B0 0B1 0U1
//	rank 1: 1F0 1B0 1F1 1B1 1U1
//
// Other plans also have lines for axes, units, and blocks that have names or other units than the one with their
// number. Ranks with equal lists share one, which may take several lines:
//
//	plan zero-3 blocks=2 microbatches=1 every=1 weights=flush
//	axis data size=4 groups=0-3
//	units 0-1 reduce=data shard=data
//	ranks 0-3: 0UNSHARD 0F0 …
//
// [Plan.Text] explains the operations. The peer of a Send or Recv follows from the other lists (the nth rank that sends
// a value belongs to the nth that receives it); where it does not, it is written, as in 2SEND_F0>3. Names with other
// characters than letters, digits and -_.+/ are quoted as in Go.
func (p *Plan) String() string {
	lines := p.header()
	ranks, texts := map[string][]int{}, []string{}
	for r, list := range p.lists() {
		text := strings.Join(list, " ")
		if ranks[text] == nil {
			texts = append(texts, text)
		}
		ranks[text] = append(ranks[text], r)
	}
	for _, text := range texts {
		line := numbered("rank", ranks[text]) + ":"
		for _, op := range strings.Fields(text) {
			if len(line)+len(op) >= lineWidth {
				lines = append(lines, line)
				line = "   "
			}
			line += " " + op
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// WriteCSV writes the plan in the CSV format of PyTorch's pipelining (_dump_csv of its schedules): a record per rank, a
// cell per operation, as in 0F0,0F1,0B0. Two passes that are a pair, next to each other, share a cell:
// (0F1;3B0)OVERLAP_F_B. The lines that [Plan.String] has before the ranks come first, as comments.
func (p *Plan) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w) // errors come back from Flush
	for _, line := range p.header() {
		fmt.Fprintf(out, "# %s\n", line)
	}
	for r, list := range p.lists() {
		for i, pair := range slices.Backward(p.Pairs(r)) {
			if i == pair.From && pair.Second == i+1 && pair.To == i+2 {
				cell := fmt.Sprintf("(%s;%s)OVERLAP_F_B", list[i], strings.TrimPrefix(list[i+1], "&"))
				list = slices.Replace(list, i, i+2, cell)
			}
		}
		if len(list) == 0 {
			list = []string{`""`} // blank lines are no records
		}
		fmt.Fprintln(out, strings.Join(list, ","))
	}
	return out.Flush()
}

// lists are the operations of each rank, as words.
func (p *Plan) lists() [][]string {
	lists, links := make([][]string, len(p.Ranks)), p.linked(false)
	for r, list := range p.Ranks {
		for i, op := range list {
			text := p.Text(op)
			if op.Peer != links.peer(r, i) {
				text += ">" + strconv.Itoa(op.Peer)
			}
			lists[r] = append(lists[r], text)
		}
	}
	return lists
}

// header returns the lines before the lists. A schedule has one.
func (p *Plan) header() []string {
	var lines []string
	for _, a := range p.Axes {
		var groups []string
		for _, g := range a.Groups {
			groups = append(groups, setText(g))
		}
		lines = append(lines, "axis"+nameAndFields(a.Name, "size", strconv.Itoa(a.Size), "groups",
			strings.Join(groups, "|")))
	}
	lines = append(lines, alike("unit", len(p.Units), func(u int) string {
		return nameAndFields(p.Units[u].Name, "reduce", strings.Join(p.Units[u].Reduce, ","), "shard", p.Units[u].Shard, "apart",
			p.Units[u].Apart)
	})...)
	lines = append(lines, alike("block", len(p.Blocks), func(b int) string {
		text, units := nameAndFields(p.Blocks[b].Name), p.Blocks[b].Units
		if len(p.Units) != len(p.Blocks) || !slices.Equal(units, []int{b}) {
			text += " units=" + setText(units)
		}
		return text
	})...)
	first, blocks, units := "plan", strconv.Itoa(len(p.Blocks)), strconv.Itoa(len(p.Units))
	kind := "blocks"
	if blocks == units {
		if units = ""; len(lines) == 0 {
			first, kind = "schedule", "stages"
		}
	}
	first += nameAndFields(p.Name, kind, blocks, "units", units, "microbatches", strconv.Itoa(p.Micro),
		"every", strconv.Itoa(p.Every), "weights", string(p.Weights))
	return append([]string{first}, lines...)
}

// nameAndFields writes a name, and pairs of key and value unless the value is empty.
func nameAndFields(name string, fields ...string) (text string) {
	if plain(name) {
		text = " " + name
	} else if name != "" {
		text = " " + strconv.Quote(name)
	}
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] != "" {
			text += " " + fields[i] + "=" + fields[i+1]
		}
	}
	return text
}

// alike writes a line for each run of equal texts of n things, and none for empty texts.
func alike(word string, n int, say func(i int) string) (lines []string) {
	for from, to := 0, 0; from < n; from = to {
		text := say(from)
		var same []int
		for to = from; to < n && say(to) == text; to++ {
			same = append(same, to)
		}
		if text != "" {
			lines = append(lines, numbered(word, same)+text)
		}
	}
	return lines
}

// numbered writes "rank 0" or "ranks 0-3".
func numbered(word string, set []int) string {
	if len(set) > 1 {
		word += "s"
	}
	return word + " " + setText(set)
}

// plain reports whether a name needs no quotes. Names of axes must not.
func plain(name string) bool { return plainName.MatchString(name) }

var plainName = regexp.MustCompile(`^[-+._/a-zA-Z0-9]+$`)

// setText writes numbers in their order, consecutive ones as in 0-3.
func setText(set []int) string {
	var runs []string
	for i := 0; i < len(set); i++ {
		first := i
		for i+1 < len(set) && set[i+1] == set[i]+1 {
			i++
		}
		run := strconv.Itoa(set[first])
		if i > first {
			run += "-" + strconv.Itoa(set[i])
		}
		runs = append(runs, run)
	}
	return strings.Join(runs, ",")
}

// drawWidth is the width of a drawing whose passes have no room for labels, in characters.
const drawWidth = 240

// String draws the timeline as text, one row per rank, to scale, as the papers do: a pass is the number of its
// micro-batch, then b for Backward, i for InputGrad, w for WeightGrad or r for Recompute, then a line as long as the
// pass takes; · is idle time, u an update. If ranks have several blocks, a capital letter tells which: A for the rank's
// first. Below a rank are its transfer streams. The last line explains the letters.
//
// A column is the shortest operation. If the drawing would then be wider than 960 characters, operations without room
// for a label are one letter.
func (t Timeline) String() string {
	var out strings.Builder
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
		fmt.Fprintf(&out, "%-*s │%s\n", margin, row.Name, strings.TrimRight(string(line), " "))
	}
	for _, of := range kinds {
		if words[of.kind] != "" {
			fmt.Fprintf(&out, "%s, ", words[of.kind])
		}
	}
	if several {
		fmt.Fprint(&out, "A, B, … a rank's blocks, ")
	}
	fmt.Fprintf(&out, "· idle; %s\n", legend)
	return out.String()
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

// Row is a row of a drawing: the passes of a rank, or one of its transfer streams.
type Row struct {
	Rank   int
	Name   string // "rank 0", or the stream's name, indented
	Spans  []Span
	Labels []string // of each span, as String draws them
}

// Rows returns a row for each rank, each followed by the rank's streams that take time. Messages are on the sender's.
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
