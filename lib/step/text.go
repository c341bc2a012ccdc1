package step

import (
	"bufio"
	"fmt"
	"io"
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
// cell per operation, as in 0F0,0F1,0B0. The lines that [Plan.String] has before the ranks come first, as comments.
func (p *Plan) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w) // errors come back from Flush
	for _, line := range p.header() {
		fmt.Fprintf(out, "# %s\n", line)
	}
	for _, list := range p.lists() {
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
		return nameAndFields(p.Units[u].Name, "reduce", strings.Join(p.Units[u].Reduce, ","), "shard", p.Units[u].Shard)
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
func plain(name string) bool {
	return name != "" && strings.IndexFunc(name, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.ContainsRune("-_.+/", c))
	}) < 0
}

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
