package step

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxCSV is the longest CSV file that is read, in bytes.
const maxCSV = 16 << 20

// WriteCSV writes the plan as PyTorch's pipelining does (its schedules have _dump_csv): a record for each rank, a cell
// for each operation, as in 0F0,0F1,0B0. What that cannot say comes first, in comments: the lines of [Plan.String]
// before those of the ranks.
func (p *Plan) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w) // an error comes back from Flush
	for _, line := range p.header() {
		fmt.Fprintf(out, "# %s\n", line)
	}
	for _, list := range p.rankTexts(",") {
		if list == "" {
			list = `,""` // blank lines are no records
		}
		fmt.Fprintln(out, list[1:])
	}
	return out.Flush()
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
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if err := p.record(strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("step: line %d: %w", n, err)
		}
	}
	if len(p.Ranks) == 0 {
		return nil, errors.New("step: the CSV has no records: want one for each rank, as in 0F0,0F1,0B0")
	}
	foreign := !p.headed
	p.schedule = p.schedule || foreign
	p.finish()
	if foreign {
		p.fromPyTorch()
	}
	return &p.Plan, nil
}

// record reads a line of CSV.
func (p *parser) record(line string) error {
	if line == "" {
		return nil
	}
	if comment, ok := strings.CutPrefix(line, "#"); ok {
		comment = strings.TrimSpace(comment)
		word, _, _ := strings.Cut(comment, " ")
		if head := word == "schedule" || word == "plan"; len(p.Ranks) == 0 && head != p.headed && !p.schedule {
			return p.heading(comment)
		}
		return nil
	}
	var words []string
	for cell := range strings.SplitSeq(line, ",") {
		cell = strings.Trim(cell, "\" \t")
		if pair, ok := strings.CutSuffix(cell, ")OVERLAP_F_B"); ok && strings.HasPrefix(pair, "(") {
			for one := range strings.SplitSeq(pair[1:], ";") {
				words = append(words, strings.TrimSpace(one))
			}
		} else if cell != "" {
			words = append(words, cell)
		}
	}
	if err := p.allow(1 + len(words)); err != nil {
		return err
	}
	list, err := p.parseOps(words)
	if err != nil {
		return fmt.Errorf("rank %d: %w", len(p.Ranks), err)
	}
	p.Ranks = append(p.Ranks, list)
	return nil
}

// fromPyTorch adds what PyTorch's files do not say.
func (p *Plan) fromPyTorch() {
	updates := false
	for _, list := range p.Ranks {
		split := map[Op]bool{} // weight gradients behind
		for i := len(list) - 1; i >= 0; i-- {
			op := &list[i]
			switch {
			case op.Kind == WeightGrad:
				split[Op{Block: op.Block, Micro: op.Micro}] = true
			case op.Kind == Backward && split[Op{Block: op.Block, Micro: op.Micro}]:
				op.Kind = InputGrad
			case op.Kind == Gather && op.What == Parameters:
				p.Units[op.Unit].Shard = "data"
			case op.Kind == Reduce && op.What == Gradient:
				p.Units[op.Unit].Reduce = []string{"data"}
			}
			updates = updates || op.Kind == Update
		}
	}
	if slices.ContainsFunc(p.Units, func(u Unit) bool { return u.Shard != "" || u.Reduce != nil }) {
		p.Axes = []Axis{{Name: "data", Size: 1}}
	}
	for r, list := range p.Ranks {
		for i, op := range list {
			list[i].Axis = p.usualAxis(op)
		}
		if !updates {
			for _, u := range p.UnitsOn(r) {
				p.Ranks[r] = append(p.Ranks[r], Op{Kind: Update, Unit: u, Micro: p.Micro - 1})
			}
		}
	}
}
