package step

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	maxOps = 1 << 20  // bounds what is read, in ranks and operations together: about 100 MB
	maxCSV = 16 << 20 // is the longest CSV file that is read, in bytes
)

// Parse reads what [Plan.String] wrote. Text by hand may have blank lines and lines that begin with #, and leave out
// what follows the name: blocks and micro-batches are then one more than the largest in the lists, every is all
// micro-batches, and weights is flush. Whether the plan can be carried out is for [Plan.Check] to say. Errors have the
// line's number.
func Parse(text string) (*Plan, error) {
	var p parser
	err := p.lines(text, func(line string) error {
		word, _, _ := strings.Cut(line, " ")
		switch {
		case line[0] == '#':
			return nil
		case p.head == "" || word != "rank" && word != "ranks" && p.headed():
			return p.heading(line)
		}
		return p.ranks(line)
	})
	if err != nil {
		return nil, err
	}
	if p.head == "" {
		return nil, fmt.Errorf("step: the text is empty: want a line %q first", "schedule NAME")
	}
	if at := slices.Index(p.listed, false); at >= 0 {
		return nil, fmt.Errorf("step: rank %d has no list", at)
	}
	p.finish()
	return &p.Plan, nil
}

// ReadCSV reads what WriteCSV wrote, and what PyTorch did: schedules of passes alone, and lowered ones with SEND_F,
// RECV_B, UNSHARD and so on. Empty cells, in which a rank is idle, are skipped. A pair such as (0F1;3B0)OVERLAP_F_B is
// one pass after the other. Without the line "# schedule …" there are as many blocks and micro-batches as the cells
// name, weights are [Flush], and updates are appended if there are none; a B with a W of the same block and
// micro-batch behind it is read as I, as older files have it; and what is gathered or reduced is so along an axis
// "data", of which the file does not say who is in it: here each rank alone. Whether the plan can be carried out is
// for [Plan.Check] to say. Errors have the line's number.
func ReadCSV(r io.Reader) (*Plan, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxCSV+1))
	if err != nil {
		return nil, fmt.Errorf("step: reading CSV: %w", err)
	}
	if len(text) > maxCSV {
		return nil, fmt.Errorf("step: the CSV is longer than %d bytes", maxCSV)
	}
	var p parser
	if err := p.lines(string(text), p.record); err != nil {
		return nil, err
	}
	if len(p.Ranks) == 0 {
		return nil, errors.New("step: the CSV has no records: want one for each rank, as in 0F0,0F1,0B0")
	}
	foreign := p.head == ""
	if foreign {
		p.head = "schedule"
	}
	p.finish()
	if foreign {
		p.fromPyTorch()
	}
	return &p.Plan, nil
}

// parser is what has been read so far.
type parser struct {
	Plan
	head                string // "schedule" or "plan", once that line has been read
	blocks, units, size int
	listed              []bool // ranks
}

// toInfer is the peer of a message until all have been read.
const toInfer = -1

// lines reads all that are not blank.
func (p *parser) lines(text string, read func(line string) error) error {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if line = strings.TrimSpace(line); line != "" {
			if err := read(line); err != nil {
				return fmt.Errorf("step: line %d: %w", n, err)
			}
		}
	}
	return nil
}

// headed tells whether lines for axes, units and blocks may follow.
func (p *parser) headed() bool { return p.head == "plan" && len(p.Ranks) == 0 }

// allow counts operations and ranks, and limits them.
func (p *parser) allow(more int) error {
	if p.size += more; p.size > maxOps {
		return fmt.Errorf("more than %d ranks and operations", maxOps)
	}
	return nil
}

// ranks reads a line with the list of ranks.
func (p *parser) ranks(line string) error {
	head, list, ok := strings.Cut(line, ":")
	words := strings.Fields(head)
	next := slices.Index(append(p.listed, false), false)
	var ranks []int
	if ok && len(words) == 2 && (words[0] == "rank" || words[0] == "ranks") {
		ranks, _ = parseSet(words[1])
	}
	if len(ranks) == 0 || ranks[0] != next {
		return fmt.Errorf("%.40q: want the list of the next rank, %q", line, fmt.Sprintf("rank %d: 0F0 …", next))
	}
	return p.list(ranks, strings.Fields(list))
}

// list reads the list of ranks.
func (p *parser) list(ranks []int, words []string) error {
	if err := p.allow(len(ranks) * (1 + len(words))); err != nil {
		return err
	}
	ops, err := p.parseOps(words)
	if err != nil {
		return err
	}
	for _, r := range ranks {
		for r >= len(p.listed) {
			p.listed, p.Ranks = append(p.listed, false), append(p.Ranks, nil)
		}
		if p.listed[r] {
			return fmt.Errorf("rank %d has a list already", r)
		}
		p.listed[r], p.Ranks[r] = true, slices.Clone(ops)
	}
	return nil
}

// record reads a line of CSV.
func (p *parser) record(line string) error {
	if comment, ok := strings.CutPrefix(line, "#"); ok {
		comment = strings.TrimSpace(comment)
		word, _, _ := strings.Cut(comment, " ")
		first := word == "schedule" || word == "plan"
		if first && p.head == "" && len(p.Ranks) == 0 || !first && p.headed() {
			return p.heading(comment)
		}
		return nil
	}
	var words []string
	for cell := range strings.SplitSeq(line, ",") {
		cell = strings.Trim(cell, "\" \t")
		if pair, ok := strings.CutSuffix(cell, ")OVERLAP_F_B"); ok && strings.HasPrefix(pair, "(") {
			words = append(words, strings.FieldsFunc(pair[1:], func(c rune) bool { return c == ';' || c == ' ' })...)
		} else if cell != "" {
			words = append(words, cell)
		}
	}
	return p.list([]int{len(p.Ranks)}, words)
}

// parseOps reads a rank's list.
func (p *parser) parseOps(words []string) (list []Op, err error) {
	for i, word := range words {
		word, peer, written := strings.Cut(word, ">")
		op, err := p.parseOp(word)
		if op.Kind == Send || op.Kind == Recv {
			op.Peer = toInfer
		}
		if err == nil && written {
			op.Peer, err = parseFrom(0, peer)
		}
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", i, err)
		}
		list = append(list, op)
	}
	return list, nil
}

// heading reads a line before those of the ranks.
func (p *parser) heading(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	if p.head == "" {
		if word != "schedule" && word != "plan" || rest == "" {
			return fmt.Errorf("%.40q: want %q", line, "schedule NAME stages=4 …")
		}
		p.head = word
		return p.first(rest)
	}
	if word == "axis" {
		return p.axis(rest)
	}
	numbers, rest, _ := strings.Cut(rest, " ")
	of, err := parseSet(numbers)
	if err != nil {
		return err
	}
	if word = strings.TrimSuffix(word, "s"); word != "unit" && word != "block" || len(of) == 0 {
		return fmt.Errorf("%.40q: want a line for an axis, for units or blocks, or a rank's list", line)
	}
	return p.numbered(word, of, rest)
}

// first reads the first line, and makes the blocks and units that it counts.
func (p *parser) first(text string) error {
	blocks := map[string]string{"plan": "blocks", "schedule": "stages"}[p.head]
	f := parseFields(text, blocks, "every", "microbatches", "units", "weights")
	f.number(blocks, 1, &p.blocks)
	f.number("units", 1, &p.units)
	f.number("microbatches", 1, &p.Micro)
	f.number("every", 1, &p.Every)
	f.read("weights", func(value string) error {
		if p.Weights = Weights(value); !slices.Contains(allWeights, p.Weights) {
			return fmt.Errorf("%.40q: want one of %v", value, allWeights)
		}
		return nil
	})
	p.Name = f.name
	p.Blocks, p.Units = Blocks(p.blocks)
	if p.units > 0 {
		p.Units = make([]Unit, p.units)
	}
	return errors.Join(f.err, p.allow(len(p.Units)))
}

func (p *parser) axis(text string) error {
	f := parseFields(text, "groups", "size")
	a := Axis{Name: f.name}
	f.number("size", 0, &a.Size)
	f.read("groups", func(value string) error {
		for text := range strings.SplitSeq(value, "|") {
			g, err := parseSet(text)
			if err = errors.Join(err, p.allow(len(g))); err != nil {
				return err
			}
			a.Groups = append(a.Groups, g)
		}
		return nil
	})
	if f.err == nil && !plain(a.Name) {
		return fmt.Errorf("axis %.40q: name it with letters, digits and -_.+/ alone", a.Name)
	}
	p.Axes = append(p.Axes, a)
	return f.err
}

// numbered reads what is said of units or blocks.
func (p *parser) numbered(word string, numbers []int, text string) error {
	f := parseFields(text, map[string][]string{"unit": {"reduce", "shard"}, "block": {"units"}}[word]...)
	there := map[string]int{"unit": len(p.Units), "block": len(p.Blocks)}[word]
	for _, n := range numbers {
		switch {
		case n >= there:
			return fmt.Errorf("%s %d: there are %d", word, n, there)
		case word == "unit":
			u := &p.Units[n]
			u.Name = f.name
			f.read("reduce", func(value string) error { return p.axes(value, &u.Reduce) })
			f.read("shard", func(value string) error { u.Shard = value; return p.axes(value, new([]string)) })
		default:
			b := &p.Blocks[n]
			b.Name = f.name
			f.read("units", func(value string) (err error) {
				b.Units, err = parseSet(value)
				return errors.Join(err, p.allow(len(b.Units)))
			})
		}
	}
	return f.err
}

// axes reads names of axes.
func (p *parser) axes(text string, to *[]string) error {
	*to = strings.Split(text, ",")
	if slices.ContainsFunc(*to, func(name string) bool { return !plain(name) }) {
		return fmt.Errorf("%.40q: want names of axes", text)
	}
	return p.allow(len(*to))
}

// fields are a line's name, which may be quoted or left out, and words such as size=4.
type fields struct {
	name   string
	values map[string]string
	err    error // the first
}

func parseFields(text string, keys ...string) *fields {
	f := &fields{values: map[string]string{}}
	text = strings.TrimSpace(text)
	first, rest, _ := strings.Cut(text, " ")
	if quoted, err := strconv.QuotedPrefix(text); err == nil && quoted[0] == '"' {
		f.name, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		text = text[len(quoted):]
	} else if key, _, ok := strings.Cut(first, "="); !ok || !slices.Contains(keys, key) {
		if f.name, text = first, rest; !plain(first) && first != "" {
			f.err = fmt.Errorf("name %.40q: quote a name that has other than letters, digits and -_.+/", first)
		}
	}
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		if !slices.Contains(keys, key) && f.err == nil {
			slices.Sort(keys)
			f.err = fmt.Errorf("%.40q: want any of %s=…", word, strings.Join(keys, "=…, "))
		}
		f.values[key] = value
	}
	return f
}

// read reads a field that is there.
func (f *fields) read(key string, do func(value string) error) {
	value, ok := f.values[key]
	if !ok || f.err != nil {
		return
	}
	if err := do(value); err != nil {
		f.err = fmt.Errorf("%s: %w", key, err)
	}
}

func (f *fields) number(key string, least int, to *int) {
	f.read(key, func(value string) (err error) {
		*to, err = parseFrom(least, value)
		return err
	})
}

// parseNumber reads digits alone, and no number that no plan can have.
func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31) // which takes no sign
	if err == nil && n > maxOps {
		err = strconv.ErrRange
	}
	return int(n), err
}

func parseFrom(least int, text string) (int, error) {
	n, err := parseNumber(text)
	if err != nil || n < least {
		return 0, fmt.Errorf("%.40q: want a number from %d to %d", text, least, maxOps)
	}
	return n, nil
}

// parseSet reads what setText wrote.
func parseSet(text string) (set []int, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRun := strings.Cut(part, "-")
		if !isRun {
			last = first
		}
		a, err := parseNumber(first)
		b, err2 := parseNumber(last)
		if err != nil || err2 != nil || b < a || len(set)+b-a >= maxOps {
			return nil, fmt.Errorf("%.40q: want numbers as in 0-3,6", text)
		}
		for n := a; n <= b; n++ {
			set = append(set, n)
		}
	}
	return set, nil
}

// finish fills in what the text left out.
func (p *parser) finish() {
	blocks, micro := 1, 1
	for _, list := range p.Ranks {
		for _, op := range list {
			blocks, micro = max(blocks, op.Block+1), max(micro, op.Micro+1)
			if p.head == "schedule" {
				blocks = max(blocks, op.Unit+1)
			}
		}
	}
	if p.blocks == 0 {
		units := p.Units
		if p.Blocks, p.Units = Blocks(blocks); p.units > 0 {
			p.Units = units
		}
	}
	p.Micro = cmp.Or(p.Micro, micro)
	p.Every = cmp.Or(p.Every, p.Micro)
	p.Weights = cmp.Or(p.Weights, Flush)
	links := p.linked(false)
	for r, list := range p.Ranks {
		for i, op := range list {
			if op.Peer == toInfer {
				list[i].Peer = links.peer(r, i)
			}
		}
	}
}

// fromPyTorch adds what PyTorch's files do not say.
func (p *Plan) fromPyTorch() {
	updates := false
	for _, list := range p.Ranks {
		split := map[Op]bool{} // weight gradients behind
		for _, op := range slices.Backward(list) {
			updates = updates || op.Kind.updates()
			split[op] = op.Kind == WeightGrad
		}
		for i, op := range list {
			switch (verb{op.Kind, op.What}) {
			case verb{Backward, 0}:
				if split[Op{Kind: WeightGrad, Block: op.Block, Micro: op.Micro}] {
					list[i].Kind = InputGrad
				}
			case verb{Gather, Parameters}:
				p.Units[op.Unit].Shard = "data"
			case verb{Reduce, Gradient}:
				p.Units[op.Unit].Reduce = []string{"data"}
			}
		}
	}
	if slices.ContainsFunc(p.Units, func(u Unit) bool { return u.Shard != "" || u.Reduce != nil }) {
		p.Axes = []Axis{{Name: "data", Size: 1}}
	}
	for r, list := range p.Ranks {
		for i, op := range list {
			list[i].Axis = p.usualAxis(op)
		}
		for _, u := range p.UnitsOn(r) {
			if !updates {
				p.Ranks[r] = append(p.Ranks[r], Op{Kind: Update, Unit: u, Micro: p.Micro - 1})
			}
		}
	}
}
