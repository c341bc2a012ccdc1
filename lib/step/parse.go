package step

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Parse reads what [Plan.String] wrote. Text by hand may have blank lines and lines that begin with #, and leave out what
// follows the name: blocks and micro-batches are then one more than the largest in the lists, every is all micro-batches,
// and weights is flush. Whether the plan can be carried out is for [Plan.Check] to say. Errors have the line's number.
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
	headed, schedule bool
	blocks, units    int
	listed           []bool // ranks
	size             int
}

// toInfer is the peer of a message until all have been read.
const toInfer = -1

func (p *parser) line(line string) error {
	word, _, _ := strings.Cut(line, " ")
	if !p.headed {
		p.headed = true
		return p.parseHeader(line)
	}
	if word != "rank" && word != "ranks" && len(p.Ranks) == 0 && !p.schedule {
		return p.parseLine(line)
	}
	head, list, ok := strings.Cut(line, ":")
	fields := strings.Fields(head)
	next := slices.Index(p.listed, false)
	if next < 0 {
		next = len(p.listed)
	}
	wrong := fmt.Errorf("%.40q: want the list of the next rank, %q", line, fmt.Sprintf("rank %d: 0F0 …", next))
	if !ok || len(fields) != 2 || fields[0] != "rank" && fields[0] != "ranks" {
		return wrong
	}
	ranks, err := parseSet(fields[1])
	if err != nil || len(ranks) == 0 || ranks[0] != next {
		return wrong
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
		for r >= len(p.listed) && len(p.listed) <= maxOps {
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
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", i, err)
		}
		if op.Kind == Send || op.Kind == Recv {
			op.Peer = toInfer
		}
		if written {
			if op.Peer, err = parseNumber(peer); err != nil {
				return nil, fmt.Errorf("position %d: %.40q: want a rank", i, peer)
			}
		}
		list = append(list, op)
	}
	return list, nil
}

// parseHeader reads the first line.
func (p *parser) parseHeader(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	if word != "schedule" && word != "plan" || rest == "" {
		return fmt.Errorf("%.40q: want %q", line, "schedule NAME stages=4 …")
	}
	p.schedule = word == "schedule"
	blocks := "blocks"
	if p.schedule {
		blocks = "stages"
	}
	name, fields, err := parseFields(rest)
	if err != nil {
		return err
	}
	p.Name = name
	for _, f := range fields {
		number := map[string]*int{blocks: &p.blocks, "units": &p.units, "microbatches": &p.Micro, "every": &p.Every}[f.key]
		switch {
		case number != nil:
			n, err := parseNumber(f.value)
			if err != nil || n == 0 {
				return fmt.Errorf("%.40q: want %s=N with N from 1 to %d", f.text, f.key, maxOps)
			}
			*number = n
		case f.key == "weights":
			switch p.Weights = Weights(f.value); p.Weights {
			case Flush, Stash, Vertical, Double:
			default:
				return fmt.Errorf("%.40q: want weights=%s, %s, %s or %s", f.text, Flush, Stash, Vertical, Double)
			}
		default:
			return fmt.Errorf("%.40q: want %s=N, microbatches=N, every=N or weights=W", f.text, blocks)
		}
	}
	return p.allocate()
}

// allocate makes the blocks and units that the header has counted.
func (p *parser) allocate() error {
	p.Blocks, p.Units = Blocks(p.blocks)
	if p.units > 0 {
		p.Units = make([]Unit, p.units)
	}
	return p.allow(len(p.Units))
}

type field struct{ text, key, value string }

// parseFields reads a name, which may be quoted, and fields such as size=4.
func parseFields(text string) (name string, fields []field, err error) {
	text = strings.TrimSpace(text)
	if quoted, err := strconv.QuotedPrefix(text); err == nil && quoted[0] == '"' {
		name, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		text = text[len(quoted):]
	} else {
		name, text, _ = strings.Cut(text, " ")
		if !plain(name) {
			return "", nil, fmt.Errorf("name %.40q: quote a name that has other than letters, digits and -_.+/", name)
		}
	}
	for _, f := range strings.Fields(text) {
		key, value, _ := strings.Cut(f, "=")
		fields = append(fields, field{f, key, value})
	}
	return name, fields, nil
}

// parseLine reads the line of an axis, or of units or blocks.
func (p *parser) parseLine(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	set := p.parseUnit
	switch word {
	case "axis":
		return p.parseAxis(rest)
	case "block", "blocks":
		set = p.parseBlock
	case "unit", "units":
	default:
		return fmt.Errorf("%.40q: want a line for an axis, for units or blocks, or a rank's list", line)
	}
	numbers, rest, _ := strings.Cut(rest, " ")
	of, err := parseSet(numbers)
	if err != nil {
		return err
	}
	if first, _, _ := strings.Cut(rest, " "); strings.Contains(first, "=") && rest[0] != '"' {
		rest = `"" ` + rest // no name
	}
	name, fields, err := parseFields(rest)
	if err != nil {
		return err
	}
	for _, n := range of {
		if err := set(n, name, fields); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) parseAxis(text string) (err error) {
	a := Axis{}
	name, fields, err := parseFields(text)
	if err != nil {
		return err
	}
	if a.Name = name; !plain(name) {
		return fmt.Errorf("axis %.40q: name it with letters, digits and -_.+/ alone", name)
	}
	for _, f := range fields {
		switch f.key {
		case "size":
			if a.Size, err = parseNumber(f.value); err != nil {
				return fmt.Errorf("%.40q: want size=N", f.text)
			}
		case "groups":
			for text := range strings.SplitSeq(f.value, "|") {
				g, err := parseSet(text)
				if err == nil {
					err = p.allow(len(g))
				}
				if err != nil {
					return err
				}
				a.Groups = append(a.Groups, g)
			}
		default:
			return fmt.Errorf("%.40q: want size=N or groups=0-3|4-7", f.text)
		}
	}
	p.Axes = append(p.Axes, a)
	return nil
}

func (p *parser) parseUnit(n int, name string, fields []field) error {
	if n >= len(p.Units) {
		return fmt.Errorf("unit %d: there are %d", n, len(p.Units))
	}
	u := Unit{Name: name}
	for _, f := range fields {
		switch f.key {
		case "reduce":
			u.Reduce = strings.Split(f.value, ",")
		case "shard":
			u.Shard = f.value
		default:
			return fmt.Errorf("%.40q: want reduce=AXIS,AXIS or shard=AXIS", f.text)
		}
		if slices.ContainsFunc(strings.Split(f.value, ","), func(name string) bool { return !plain(name) }) {
			return fmt.Errorf("%.40q: want names of axes", f.text)
		}
	}
	p.Units[n] = u
	return p.allow(len(u.Reduce))
}

func (p *parser) parseBlock(n int, name string, fields []field) (err error) {
	if n >= len(p.Blocks) {
		return fmt.Errorf("block %d: there are %d", n, len(p.Blocks))
	}
	b := &p.Blocks[n]
	b.Name = name
	for _, f := range fields {
		if f.key != "units" {
			return fmt.Errorf("%.40q: want units=0,1", f.text)
		}
		if b.Units, err = parseSet(f.value); err != nil {
			return err
		}
	}
	return p.allow(len(b.Units))
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
		p.Blocks, _ = Blocks(blocks)
		if p.units == 0 {
			_, p.Units = Blocks(blocks)
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
