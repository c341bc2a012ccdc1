package step

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Parse reads what [Plan.String] wrote. Text by hand may have blank lines and lines that begin with #, and leave out
// what follows the name: blocks and micro-batches are then one more than the largest in the lists, every is all
// micro-batches, and weights is flush. Whether the plan can be carried out is for [Plan.Check] to say. Errors have the
// line's number.
func Parse(text string) (*Plan, error) {
	var p parser
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("step: line %d: %w", n+1, err)
		}
	}
	if !p.headed {
		return nil, fmt.Errorf("step: the text is empty: want a line %q first", "schedule NAME")
	}
	if at := slices.Index(p.listed, false); at >= 0 {
		return nil, fmt.Errorf("step: rank %d has no list", at)
	}
	p.finish()
	return &p.Plan, nil
}

// parser is what has been read so far.
type parser struct {
	Plan
	headed, schedule    bool
	blocks, units, size int
	listed              []bool // ranks
}

// toInfer is the peer of a message until all have been read.
const toInfer = -1

func (p *parser) line(line string) error {
	word, _, _ := strings.Cut(line, " ")
	if !p.headed || word != "rank" && word != "ranks" && len(p.Ranks) == 0 && !p.schedule {
		return p.heading(line)
	}
	head, list, ok := strings.Cut(line, ":")
	fields := strings.Fields(head)
	next := slices.Index(p.listed, false)
	if next < 0 {
		next = len(p.listed)
	}
	var ranks []int
	if ok && len(fields) == 2 && (fields[0] == "rank" || fields[0] == "ranks") {
		ranks, _ = parseSet(fields[1])
	}
	if len(ranks) == 0 || ranks[0] != next {
		return fmt.Errorf("%.40q: want the list of the next rank, %q", line, fmt.Sprintf("rank %d: 0F0 …", next))
	}
	words := strings.Fields(list)
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

// allow counts operations and ranks, and limits them.
func (p *parser) allow(more int) error {
	if p.size += more; p.size > maxOps {
		return fmt.Errorf("more than %d ranks and operations", maxOps)
	}
	return nil
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
			err = number(&op.Peer, 0)(peer)
		}
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", i, err)
		}
		list = append(list, op)
	}
	return list, nil
}

// heading reads a line before those of the ranks.
func (p *parser) heading(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	if !p.headed {
		p.headed, p.schedule = true, word == "schedule"
		if !p.schedule && word != "plan" || rest == "" {
			return fmt.Errorf("%.40q: want %q", line, "schedule NAME stages=4 …")
		}
		return p.header(rest)
	}
	if word == "axis" {
		return p.axis(rest)
	}
	numbers, rest, _ := strings.Cut(rest, " ")
	of, err := parseSet(numbers)
	for _, n := range of {
		switch {
		case word == "unit" || word == "units":
			err = errors.Join(err, p.unit(n, rest))
		case word == "block" || word == "blocks":
			err = errors.Join(err, p.block(n, rest))
		default:
			of = nil
		}
		if err != nil {
			return err
		}
	}
	if len(of) == 0 {
		return fmt.Errorf("%.40q: want a line for an axis, for units or blocks, or a rank's list", line)
	}
	return nil
}

// header reads the first line, and makes the blocks and units that it counts.
func (p *parser) header(text string) error {
	blocks := "blocks"
	if p.schedule {
		blocks = "stages"
	}
	err := parseFields(text, &p.Name, map[string]func(string) error{
		blocks: number(&p.blocks, 1), "units": number(&p.units, 1),
		"microbatches": number(&p.Micro, 1), "every": number(&p.Every, 1),
		"weights": func(value string) error {
			all := []Weights{Flush, Stash, Vertical, Double}
			if p.Weights = Weights(value); !slices.Contains(all, p.Weights) {
				return fmt.Errorf("%.40q: want one of %v", value, all)
			}
			return nil
		}})
	if err != nil {
		return err
	}
	p.Blocks, p.Units = Blocks(p.blocks)
	if p.units > 0 {
		p.Units = make([]Unit, p.units)
	}
	return p.allow(len(p.Units))
}

func (p *parser) axis(text string) error {
	a := Axis{}
	err := parseFields(text, &a.Name, map[string]func(string) error{"size": number(&a.Size, 0),
		"groups": func(value string) error {
			for text := range strings.SplitSeq(value, "|") {
				var g []int
				if err := errors.Join(set(&g)(text), p.allow(len(g))); err != nil {
					return err
				}
				a.Groups = append(a.Groups, g)
			}
			return nil
		}})
	if err == nil && !plain(a.Name) {
		return fmt.Errorf("axis %.40q: name it with letters, digits and -_.+/ alone", a.Name)
	}
	p.Axes = append(p.Axes, a)
	return err
}

func (p *parser) unit(n int, text string) error {
	if n >= len(p.Units) {
		return fmt.Errorf("unit %d: there are %d", n, len(p.Units))
	}
	u := Unit{}
	err := parseFields(text, &u.Name, map[string]func(string) error{
		"reduce": func(value string) error { u.Reduce = strings.Split(value, ","); return nil },
		"shard":  func(value string) error { u.Shard = value; return nil }})
	if slices.ContainsFunc(append(slices.Clone(u.Reduce), "a"+u.Shard), func(name string) bool { return !plain(name) }) {
		return fmt.Errorf("%.40q: want names of axes", text)
	}
	p.Units[n] = u
	return errors.Join(err, p.allow(len(u.Reduce)))
}

func (p *parser) block(n int, text string) error {
	if n >= len(p.Blocks) {
		return fmt.Errorf("block %d: there are %d", n, len(p.Blocks))
	}
	b := &p.Blocks[n]
	err := parseFields(text, &b.Name, map[string]func(string) error{"units": set(&b.Units)})
	return errors.Join(err, p.allow(len(b.Units)))
}

// parseFields reads a name, which may be quoted or left out, and fields such as size=4.
func parseFields(text string, name *string, fields map[string]func(value string) error) error {
	text = strings.TrimSpace(text)
	first, rest, _ := strings.Cut(text, " ")
	if quoted, err := strconv.QuotedPrefix(text); err == nil && quoted[0] == '"' {
		*name, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		text = text[len(quoted):]
	} else if key, _, ok := strings.Cut(first, "="); !ok || fields[key] == nil {
		if *name, text = first, rest; !plain(first) && first != "" {
			return fmt.Errorf("name %.40q: quote a name that has other than letters, digits and -_.+/", first)
		}
	}
	for _, f := range strings.Fields(text) {
		key, value, _ := strings.Cut(f, "=")
		if fields[key] == nil {
			return fmt.Errorf("%.40q: want any of %s=…", f, strings.Join(slices.Sorted(maps.Keys(fields)), "=…, "))
		}
		if err := fields[key](value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// number reads a number into a variable.
func number(to *int, least int) func(text string) error {
	return func(text string) (err error) {
		if *to, err = parseNumber(text); err != nil || *to < least {
			return fmt.Errorf("%.40q: want a number from %d to %d", text, least, maxOps)
		}
		return nil
	}
}

// set reads what setText wrote into a variable.
func set(to *[]int) func(text string) error {
	return func(text string) (err error) {
		*to, err = parseSet(text)
		return err
	}
}

func parseSet(text string) (set []int, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRun := strings.Cut(part, "-")
		a, err := parseNumber(first)
		b := a
		if isRun && err == nil {
			b, err = parseNumber(last)
		}
		if err != nil || b < a || len(set)+b-a >= maxOps {
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
			if p.schedule {
				blocks = max(blocks, op.Unit+1)
			}
		}
	}
	if p.blocks == 0 {
		_, units := Blocks(blocks)
		if p.Blocks, _ = Blocks(blocks); p.units == 0 {
			p.Units = units
		}
	}
	if p.Micro == 0 {
		p.Micro = micro
	}
	if p.Every == 0 {
		p.Every = p.Micro
	}
	if p.Weights == "" {
		p.Weights = Flush
	}
	peers := p.peers()
	for r, list := range p.Ranks {
		for i, op := range list {
			if op.Peer == toInfer {
				list[i].Peer = peers.of(r, i)
			}
		}
	}
}
