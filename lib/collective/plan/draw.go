package plan

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/shardbook/shardbook/lib/chart"
)

// Draw writes what every rank holds before the first round and after each: a row a
// rank, a column a chunk. b2 is rank 1's contribution to chunk 2, a2+b2 a sum, and ·
// a place that holds nothing yet. Scratch is left out, and of an AllToAll all but the
// result. Above each picture are the messages that made it, as sender→receiver and
// chunks. The errors are those of a plan that cannot be carried out, and of w.
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
			fmt.Fprintf(out, "round %d: %s\n", i-1, strings.Join(p.arrows(i-1), ", "))
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

// Charts are the same pictures as heat maps, one before the first round and one after
// each: the number of ranks whose data is in each chunk of each rank. The errors are
// those of a plan that cannot be carried out.
func (p *Plan) Charts() ([]*chart.Chart, error) {
	pictures, err := p.pictures()
	if err != nil {
		return nil, err
	}
	ranks := labels("rank ", p.Ranks)
	chunks := labels("", p.Chunks)
	var list []*chart.Chart
	for i, picture := range pictures {
		values := make([][]float64, p.Ranks)
		for rank, row := range picture {
			for _, cell := range row {
				values[rank] = append(values[rank], float64(cell.count()))
			}
		}
		title := fmt.Sprintf("%v by %v: contributions at the start", p.Op, p.Algorithm)
		if i > 0 {
			title = fmt.Sprintf("after round %d", i-1)
		}
		list = append(list, chart.HeatMap(title, chunks, ranks, values).Axes("chunk", "").Scale(0, float64(p.Ranks)))
	}
	return list, nil
}

// Messages is a table of the plan's messages, a row a round.
func (p *Plan) Messages() *chart.Chart {
	var rows [][]string
	for round := range p.Rounds {
		rows = append(rows, []string{fmt.Sprint(round), strings.Join(p.arrows(round), ", ")})
	}
	return chart.Table(fmt.Sprintf("%v by %v, %d ranks: sender→receiver: chunks", p.Op, p.Algorithm, p.Ranks),
		[]string{"round", "messages"}, rows)
}

// Chart is a heat map of the bytes on each link, a row for each sender. It is in error
// for the traffic of Formula, which has no links.
func (t Traffic) Chart(title string) *chart.Chart {
	values := make([][]float64, len(t.Links))
	for from, row := range t.Links {
		for _, load := range row {
			values[from] = append(values[from], float64(load.Bytes))
		}
	}
	return chart.HeatMap(title, labels("", len(values)), labels("", len(values)), values).Axes("to", "from")
}

// labels returns the name with the numbers from 0 on.
func labels(name string, count int) []string {
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprint(name, i)
	}
	return list
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
			picture = append(picture, slices.Clone(resultOf(p, row)))
		}
		pictures = append(pictures, picture)
	}
	keep(p.inputs(newAlgebra()))
	_, err := p.symbolic(func(_ int, slots [][]*term) { keep(slots) })
	return pictures, err
}

// arrows are the messages of a round: "0→1: 2 3".
func (p *Plan) arrows(round int) []string {
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
