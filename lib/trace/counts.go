package trace

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/chart"
)

// Counts draws counters over time (ms) as step functions: those with the given names, or all if no names are given. y
// names the vertical axis with its unit; values are divided by unit:
//
//	t.Counts("memory", "live arrays (MB)", 1e6, "live")
//
// Each counter of each rank is one line, up to the end of the trace.
func (t Trace) Counts(title, y string, unit float64, names ...string) *chart.Chart {
	_, end := t.Range()
	counters := slices.DeleteFunc(slices.Clone(t.Counters), func(c Counter) bool {
		return len(names) > 0 && !slices.Contains(names, c.Name)
	})
	slices.SortStableFunc(counters, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Name, b.Name), cmp.Compare(a.At, b.At))
	})
	several := len(counters) > 0 && counters[0].Rank != counters[len(counters)-1].Rank
	var lines []chart.Series
	for i, c := range counters {
		until := end
		if last := i == len(counters)-1; !last && counters[i+1].Rank == c.Rank && counters[i+1].Name == c.Name {
			until = counters[i+1].At
		}
		if i == 0 || counters[i-1].Rank != c.Rank || counters[i-1].Name != c.Name {
			name := c.Name
			if several {
				name = fmt.Sprintf("rank %d %s", c.Rank, c.Name)
			}
			lines = append(lines, chart.Series{Name: name})
		}
		line := &lines[len(lines)-1]
		line.X = append(line.X, ms(c.At), ms(until))
		line.Y = append(line.Y, float64(c.Value)/unit, float64(c.Value)/unit)
	}
	return chart.Line(title, "time (ms)", y, lines...)
}
