package step

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxOps = 1 << 20  // of a text, ranks and operations together: about 100 MB
	maxCSV = 16 << 20 // of a CSV file, in bytes
)

// Parse reads the text that [Plan.String] writes. Text written by hand may have blank lines, lines that begin with #,
// and lists that go on in the next lines. It may leave out what follows the name: the numbers of blocks and
// micro-batches then follow from the lists, every is all micro-batches, and weights is flush. Errors name the line.
// Parse does not check whether the plan can run: see [Plan.Check].
func Parse(text string) (*Plan, error) {
	var p parser
	err := p.lines(text, func(line string) error {
		switch word, _, _ := strings.Cut(line, " "); {
		case line[0] == '#':
			return nil
		case p.headed && (word == "rank" || word == "ranks"):
			return p.ranks(line)
		case len(p.Ranks) > 0:
			return p.list(strings.Fields(line))
		}
		return p.heading(line)
	})
	if at := slices.Index(p.listed, false); err == nil && !p.headed {
		err = fmt.Errorf("step: the text is empty: want a line %q first", "schedule NAME")
	} else if err == nil && at >= 0 {
		err = fmt.Errorf("step: rank %d has no list", at)
	}
	if err != nil {
		return nil, err
	}
	return p.finish(), nil
}

// ReadCSV reads what WriteCSV writes, and the CSV files of PyTorch's pipelining: schedules of passes, or lowered ones
// with SEND_F, RECV_B, UNSHARD and so on. Empty cells, in which a rank is idle, are skipped; (0F1;3B0)OVERLAP_F_B is
// a pair, 0F1 &3B0.
//
// Without a line "# schedule …" as WriteCSV writes it, the numbers of blocks and micro-batches follow from the cells,
// weights are [Flush], and updates are appended if there are none. A B beside a W of the same block and micro-batch
// means I, as in older files. Parameters are gathered and gradients reduced along an axis "data" of size 1, since the
// file does not say which ranks form a group.
//
// Errors name the line. ReadCSV does not check whether the plan can run: see [Plan.Check].
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
	if p.finish(); !p.headed {
		p.fromPyTorch()
	}
	return &p.Plan, nil
}

type parser struct {
	Plan
	headed              bool // the first line has been read
	blocks, units, size int
	listed              []bool // ranks
	open                []int  // ranks whose list goes on in the next line
}

// toInfer is the peer of a message until all lists have been read.
const toInfer = -1

// lines calls read for each line that is not blank.
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

// allow counts operations and ranks, up to the limit.
func (p *parser) allow(more int) error {
	if p.size += more; p.size > maxOps {
		return fmt.Errorf("more than %d ranks and operations", maxOps)
	}
	return nil
}

// ranks reads a line that begins the list of some ranks.
func (p *parser) ranks(line string) error {
	head, list, ok := strings.Cut(line, ":")
	_, numbers, _ := strings.Cut(head, " ")
	ranks, err := p.set(strings.TrimSpace(numbers))
	next := slices.Index(append(p.listed, false), false)
	if !ok || err != nil || len(ranks) == 0 || ranks[0] != next {
		return fmt.Errorf("%.40q: want the list of the next rank, %q", line, fmt.Sprintf("rank %d: 0F0 …", next))
	}
	for p.open = ranks; len(ranks) > 0; ranks = ranks[1:] {
		r := ranks[0]
		for r >= len(p.listed) {
			p.listed, p.Ranks = append(p.listed, false), append(p.Ranks, nil)
		}
		if p.listed[r] {
			return fmt.Errorf("rank %d has a list already", r)
		}
		p.listed[r] = true
	}
	return p.list(strings.Fields(list))
}

// list reads the next operations of the open ranks.
func (p *parser) list(words []string) error {
	if err := p.allow(len(p.open) * len(words)); err != nil {
		return err
	}
	var ops []Op
	for i, word := range words {
		word, peer, written := strings.Cut(word, ">")
		op, err := p.parseOp(word)
		if op.isMessage() {
			op.Peer = toInfer
		}
		if err == nil && written {
			op.Peer, err = parseFrom(0, peer)
		}
		if err != nil {
			return fmt.Errorf("position %d: %w", len(p.Ranks[p.open[0]])+i, err)
		}
		ops = append(ops, op)
	}
	for _, r := range p.open {
		p.Ranks[r] = append(p.Ranks[r], ops...)
	}
	return nil
}

// overlapped is a CSV cell with two passes.
var overlapped = regexp.MustCompile(`\(([^;()]*); *([^;()]*)\)OVERLAP_F_B`)

// record reads a line of CSV.
func (p *parser) record(line string) error {
	if comment, ok := strings.CutPrefix(line, "#"); ok {
		comment = strings.TrimSpace(comment)
		word, _, _ := strings.Cut(comment, " ")
		if len(p.Ranks) > 0 || !slices.Contains(headings[p.headed], word) {
			return nil
		}
		return p.heading(comment)
	}
	words := strings.FieldsFunc(overlapped.ReplaceAllString(line, "$1,&$2"), func(c rune) bool {
		return c == ',' || c == '"' || c == ' ' || c == '\t'
	})
	p.open, p.Ranks = []int{len(p.Ranks)}, append(p.Ranks, nil)
	return errors.Join(p.allow(1), p.list(words))
}

// headings are the words that the first line begins with, and those of the other lines before the lists.
var headings = map[bool][]string{false: {"schedule", "plan"}, true: {"axis", "unit", "units", "block", "blocks"}}

// heading reads a line before the lists: the first, or one of an axis, of units or of blocks.
func (p *parser) heading(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	first := slices.Contains(headings[false], word)
	if first == p.headed || first && rest == "" || len(p.Ranks) > 0 {
		return fmt.Errorf("%.40q: want %q first, then lines for axes, units and blocks, then a list for each rank",
			line, "schedule NAME stages=4 …")
	}
	p.headed = true
	of := []int{0}
	if one := strings.TrimSuffix(word, "s"); one == "unit" || one == "block" {
		word = one
		numbers, behind, _ := strings.Cut(rest, " ")
		if of, err = p.set(numbers); err != nil {
			return err
		}
		rest = behind
	}
	for _, n := range of {
		name, f, err := p.about(word, n)
		if err == nil {
			*name, err = f.read(rest)
		}
		if err == nil && word == "axis" && !plain(*name) {
			err = fmt.Errorf("axis %.40q: name it with letters, digits and -_.+/ alone", *name)
		}
		if err != nil {
			return err
		}
	}
	if first {
		p.Blocks, p.Units = Blocks(p.blocks)
		if p.units > 0 {
			p.Units = make([]Unit, p.units)
		}
		return p.allow(len(p.Units))
	}
	return nil
}

// about returns where a heading's name and fields are stored.
func (p *parser) about(word string, n int) (name *string, f fields, err error) {
	switch {
	case word == "schedule", word == "plan":
		return &p.Name, fields{"stages": number(1, &p.blocks), "blocks": number(1, &p.blocks),
			"units":        number(1, &p.units),
			"microbatches": number(1, &p.Micro), "every": number(1, &p.Every), "weights": func(value string) error {
				if p.Weights = Weights(value); !slices.Contains(allWeights, p.Weights) {
					return fmt.Errorf("%.40q: want one of %v", value, allWeights)
				}
				return nil
			}}, nil
	case word == "axis":
		p.Axes = append(p.Axes, Axis{})
		a := &p.Axes[len(p.Axes)-1]
		return &a.Name, fields{"size": number(0, &a.Size), "groups": func(value string) (err error) {
			for text := range strings.SplitSeq(value, "|") {
				g, wrong := p.set(text)
				a.Groups, err = append(a.Groups, g), cmp.Or(err, wrong)
			}
			return err
		}}, nil
	case word == "unit" && n < len(p.Units):
		u := &p.Units[n]
		text := func(to *string) func(string) error { return func(value string) error { *to = value; return nil } }
		return &u.Name, fields{"shard": text(&u.Shard), "apart": text(&u.Apart),
			"reduce": func(value string) error {
				u.Reduce = strings.Split(value, ",")
				if slices.ContainsFunc(u.Reduce, func(a string) bool { return !plain(a) }) {
					return fmt.Errorf("%.40q: want names of axes", value)
				}
				return p.allow(len(u.Reduce))
			}}, nil
	case word == "block" && n < len(p.Blocks):
		b := &p.Blocks[n]
		return &b.Name, fields{"units": func(value string) (err error) {
			if b.Units = nil; value != "" {
				b.Units, err = p.set(value)
			}
			return err
		}}, nil
	case word == "unit", word == "block":
		return nil, nil, fmt.Errorf("%s %d: there are %d units and %d blocks", word, n, len(p.Units), len(p.Blocks))
	}
	return nil, nil, fmt.Errorf("%.40q: want a line for an axis, for units or blocks, or a rank's list", word)
}

// fields read the values of a heading's words, such as size=4, by key.
type fields map[string]func(value string) error

func number(least int, to *int) func(value string) error {
	return func(value string) (err error) {
		*to, err = parseFrom(least, value)
		return err
	}
}

// read reads a name, which may be quoted or missing, and fields.
func (f fields) read(text string) (name string, err error) {
	text = strings.TrimSpace(text)
	first, rest, _ := strings.Cut(text, " ")
	key, _, isField := strings.Cut(first, "=")
	if quoted, err := strconv.QuotedPrefix(text); err == nil && quoted[0] == '"' {
		name, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		text = text[len(quoted):]
	} else if !isField || f[key] == nil {
		if name, text = first, rest; !plain(first) && first != "" {
			return name, fmt.Errorf("name %.40q: quote a name that has other than letters, digits and -_.+/", first)
		}
	}
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		if f[key] == nil {
			return name, fmt.Errorf("%.40q: want any of %s=…", word, strings.Join(slices.Sorted(maps.Keys(f)), "=…, "))
		}
		if err := f[key](value); err != nil {
			return name, fmt.Errorf("%s: %w", key, err)
		}
	}
	return name, nil
}

// parseNumber reads digits without a sign, up to maxOps.
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

// set reads what setText writes.
func (p *parser) set(text string) (set []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRun := strings.Cut(part, "-")
		if !isRun {
			last = first
		}
		a, err := parseNumber(first)
		b, err2 := parseNumber(last)
		if err != nil || err2 != nil || b < a {
			return nil, fmt.Errorf("%.40q: want numbers as in 0-3,6", text)
		}
		if err := p.allow(b - a + 1); err != nil {
			return nil, err
		}
		for n := a; n <= b; n++ {
			set = append(set, n)
		}
	}
	return set, nil
}

// finish fills in what the text left out.
func (p *parser) finish() *Plan {
	blocks, micro := 1, 1
	for _, list := range p.Ranks {
		for _, op := range list {
			blocks, micro = max(blocks, op.Block+1), max(micro, op.Micro+1)
			if p.units == 0 {
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
	return &p.Plan
}

// fromPyTorch adds what PyTorch's files do not say.
func (p *Plan) fromPyTorch() {
	updates := false
	for _, list := range p.Ranks {
		backward := map[Op]int{} // position
		for i, op := range list {
			switch op.Paired = false; op.verb() {
			case verb{Backward, 0}:
				backward[op] = i
			case verb{WeightGrad, 0}:
				op.Kind = Backward
				if at, ok := backward[op]; ok {
					list[at].Kind = InputGrad
				}
			case verb{Gather, Parameters}:
				p.Units[op.Unit].Shard = "data"
			case verb{Reduce, Gradient}:
				p.Units[op.Unit].Reduce = []string{"data"}
			}
			updates = updates || list[i].Kind.updates()
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
