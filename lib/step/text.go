package step

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// lineWidth is how wide a line of a plan may be.
const lineWidth = 100

// Blocks returns n blocks with no names, and a unit for each: a pipeline's stages.
func Blocks(n int) (blocks []Block, units []Unit) {
	blocks, units = make([]Block, n), make([]Unit, n)
	for b := range blocks {
		blocks[b].Units = []int{b}
	}
	return blocks, units
}

// String is the plan as text, which [Parse] reads. A pipeline's schedule, whose blocks have a unit each and no more, is
//
//	schedule 1f1b stages=2 microbatches=2 every=2 weights=flush
//	rank 0: 0F0 0F1 0B0 0B1 0U1
//	rank 1: 1F0 1B0 1F1 1B1 1U1
//
// Any other has lines for its axes, units and blocks as well, less the blocks that have no name and, where there are as
// many units, the unit of the same number. Ranks with equal lists have them once, in as many lines as it takes:
//
//	plan zero-3 blocks=2 microbatches=1 every=1 weights=flush
//	axis data size=4 groups=0-3
//	units 0-1 reduce=data shard=data
//	ranks 0-3: 0UNSHARD 0F0 …
//
// [Plan.Text] has the operations. The peer of Send and Recv is the rank that has the other one; where several have it,
// as in replicas of a pipeline, the first rank that sends means the first that receives, and so on. Where it is another
// it is written, as in 2SEND_F0>3. A name that is not made of letters, digits and -_.+/ alone is quoted as in Go.
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

// WriteCSV writes the plan as PyTorch's pipelining does (its schedules have _dump_csv): a record for each rank, a cell
// for each operation, as in 0F0,0F1,0B0. What that cannot say comes first, in comments: the lines of [Plan.String]
// before those of the ranks.
func (p *Plan) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w) // an error comes back from Flush
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

// header is all but the ranks' lists, in lines. A schedule has one: all else in it is as usual.
func (p *Plan) header() []string {
	var lines []string
	for _, a := range p.Axes {
		var groups []string
		for _, g := range a.Groups {
			groups = append(groups, setText(g))
		}
		lines = append(lines, "axis"+said(a.Name, "size", strconv.Itoa(a.Size), "groups", strings.Join(groups, "|")))
	}
	lines = append(lines, alike("unit", len(p.Units), func(u int) string {
		return said(p.Units[u].Name, "reduce", strings.Join(p.Units[u].Reduce, ","), "shard", p.Units[u].Shard)
	})...)
	lines = append(lines, alike("block", len(p.Blocks), func(b int) string {
		text, units := said(p.Blocks[b].Name), p.Blocks[b].Units
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
	first += said(p.Name, kind, blocks, "units", units, "microbatches", strconv.Itoa(p.Micro), "every",
		strconv.Itoa(p.Every), "weights", string(p.Weights))
	return append([]string{first}, lines...)
}

// said is a name, and keys with values behind it, without those that are empty.
func said(name string, fields ...string) (text string) {
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

// alike writes lines for n things, one for several that follow each other and are alike, none where nothing is said.
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

// numbered is "rank 0", "ranks 0-3".
func numbered(word string, set []int) string {
	if len(set) > 1 {
		word += "s"
	}
	return word + " " + setText(set)
}

// plain tells whether a name can be written without quotes. The names of axes must be such.
func plain(name string) bool {
	return name != "" && strings.IndexFunc(name, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-_.+/", c))
	}) < 0
}

// setText writes numbers in their order, those that follow each other as in 0-3.
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
