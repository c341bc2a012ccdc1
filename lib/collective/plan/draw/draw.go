// Package draw makes charts of the plans of collective operations. It is apart from package plan, so that programs
// which only carry plans out link no charts.
package draw

import (
	"fmt"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Rounds are heat maps of what every rank holds, one before the first round and one after each: the number of ranks
// whose data is in each chunk of each rank. The errors are those of a plan that cannot be carried out.
func Rounds(p *plan.Plan) ([]*chart.Chart, error) {
	held, err := p.Held()
	if err != nil {
		return nil, err
	}
	ranks, chunks := labels("rank ", p.Ranks), labels("", p.Chunks)
	var list []*chart.Chart
	for i, picture := range held {
		values := make([][]float64, p.Ranks)
		for rank, row := range picture {
			for _, n := range row {
				values[rank] = append(values[rank], float64(n))
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

// Messages is a table of a plan's messages, a row for each round.
func Messages(p *plan.Plan) *chart.Chart {
	var rows [][]string
	for round := range p.Rounds {
		rows = append(rows, []string{fmt.Sprint(round), strings.Join(p.Arrows(round), ", ")})
	}
	return chart.Table(fmt.Sprintf("%v by %v, %d ranks: sender→receiver: chunks", p.Op, p.Algorithm, p.Ranks),
		[]string{"round", "messages"}, rows)
}

// Traffic is a heat map of the bytes on each link, a row for each sender.
func Traffic(t plan.Traffic, title string) *chart.Chart {
	values := make([][]float64, len(t.Links))
	for from, row := range t.Links {
		for _, load := range row {
			values[from] = append(values[from], float64(load.Bytes))
		}
	}
	return chart.HeatMap(title, labels("", len(values)), labels("", len(values)), values).Axes("to", "from")
}

// Timeline is a Gantt chart of a plan's messages over time, in microseconds: a lane for each rank, with its messages
// labelled by the other rank. It is in error for a plan that sends nothing.
func Timeline(l *plan.Timeline) *chart.Chart {
	var spans []chart.Span
	for rank := range l.Done { // so that the lanes are in the order of the ranks
		for _, s := range l.Spans {
			if s.Rank != rank {
				continue
			}
			label := ""
			switch s.Action {
			case plan.Send:
				label = fmt.Sprintf("→%d", s.Peer)
			case plan.Receive:
				label = fmt.Sprintf("←%d", s.Peer)
			}
			spans = append(spans, chart.Span{Lane: fmt.Sprintf("rank %d", rank), Label: label, Kind: s.Action.String(),
				Start: microseconds(s.Begin), End: microseconds(s.End)})
		}
	}
	return chart.Gantt(l.Title, spans...).Axes("time (µs)", "")
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// labels returns the name with the numbers from 0 on.
func labels(name string, count int) []string {
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprint(name, i)
	}
	return list
}
