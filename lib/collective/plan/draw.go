package plan

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Draw writes what every rank holds before the first round and after each as text: a row for each rank, a column for
// each chunk. b2 is rank 1's contribution to chunk 2, a2+b2 a sum, and · an empty slot. Scratch is left out, and of an
// AllToAll all but the result. Before each picture are the messages of the round, as in Arrows. The errors are those of
// a plan that cannot be carried out, and of w.
func (p *Plan) Draw(w io.Writer) error {
	pictures, err := p.pictures()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%v by %v, %d ranks\n", p.Op, p.Algorithm, p.Ranks)
	for i, picture := range pictures {
		if i == 0 {
			fmt.Fprintln(out, "start")
		} else {
			fmt.Fprintf(out, "round %d: %s\n", i-1, strings.Join(p.Arrows(i-1), ", "))
		}
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for rank, row := range picture {
			fmt.Fprintf(table, "  rank %d", rank)
			for _, cell := range row {
				fmt.Fprintf(table, "\t%v", cell)
			}
			fmt.Fprintln(table)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Held is the number of ranks whose data is in each chunk of each rank, before the first round and after each: by
// round, rank and chunk. The errors are those of a plan that cannot be carried out.
func (p *Plan) Held() ([][][]int, error) {
	pictures, err := p.pictures()
	held := make([][][]int, len(pictures))
	for i, picture := range pictures {
		for _, row := range picture {
			ranks := make([]int, len(row))
			for c, cell := range row {
				if cell != nil {
					ranks[c] = cell.count
				}
			}
			held[i] = append(held[i], ranks)
		}
	}
	return held, err
}

// pictures are the result slots of each rank before the first round and after each.
func (p *Plan) pictures() ([][][]*term, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	var pictures [][][]*term
	keep := func(slots [][]*term) {
		var picture [][]*term
		for _, row := range slots {
			picture = append(picture, slices.Clone(p.resultOf(row)))
		}
		pictures = append(pictures, picture)
	}
	keep(p.inputs(newAlgebra()))
	_, err := p.symbolic(func(_ int, slots [][]*term) { keep(slots) })
	return pictures, err
}

// Arrows are the messages of a round, as sender→receiver and chunks: "0→1: 2 3".
func (p *Plan) Arrows(round int) []string {
	var list []string
	for rank, steps := range p.Steps {
		place := map[int]int{} // by peer
		for _, s := range steps {
			if s.Round != round || s.Action != Send {
				continue
			}
			at, seen := place[s.Peer]
			if !seen {
				at = len(list)
				place[s.Peer] = at
				list = append(list, fmt.Sprintf("%d→%d:", rank, s.Peer))
			}
			list[at] += fmt.Sprintf(" %d", s.Chunk)
		}
	}
	return list
}
