package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/shardbook/shardbook/lib/chart"
)

// columns are those of the table of results. Documents have those that are no times.
var columns = []struct {
	name string
	time bool
	cell func(r record) string // "" is nothing
}{
	{"case", false, func(r record) string { return r.Case }},
	{"", false, func(r record) string { return r.Impl }},
	{"ms", true, func(r record) string { return cell("%.4g", r.MedianMS) }},
	{"bus GB/s", true, func(r record) string { return cell("%.4g", r.BusBW) }},
	{"over", false, func(r record) string { return r.Over }},
	{"cost", false, func(r record) string { return cell("%.3f", r.Cost) }},
	{"of least times", false, func(r record) string { return cell("%.3f", r.MinCost) }},
	{"ratio", false, func(r record) string { return cell("%.2f", r.Ratio) }},
	{"least", false, func(r record) string { return cell("%.2f", r.RatioMin) }},
	{"of least times", false, func(r record) string { return cell("%.2f", r.MinRatio) }},
	{"best peer", false, func(r record) string { return r.Best }},
	{"% of limit", false, func(r record) string { return cell("%.0f", 100*r.OfLimit) }},
	{"a block's weights, MiB", false, func(r record) string { return mebibytes(r.BlockBytes) }},
	{"a device's gradients, MiB", false, func(r record) string { return mebibytes(r.GradientBytes) }},
	{"temporary MiB", false, func(r record) string { return mebibytes(r.Temporary) }},
	{"ratio", false, func(r record) string { return cell("%.2f", r.TempRatio) }},
	{"all planned MiB", false, func(r record) string { return mebibytes(r.planned()) }},
	{"ratio", false, func(r record) string { return cell("%.2f", r.MemoryRatio) }},
	{"peak RSS MiB", true, func(r record) string { return mebibytes(r.PeakRSS) }},
	{"rise of RSS MiB", false, func(r record) string { return mebibytes(r.ExtraRSS) }},
	{"load", false, func(r record) string { return cell("%.1f", r.Load1) }},
}

// cell writes a number, and nothing if there is none.
func cell(format string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

func mebibytes(bytes int64) string { return cell("%.4g", float64(bytes)/(1<<20)) }

// cells have a row for each record, and the columns that are not empty.
func cells(records []record, times bool) (header []string, rows [][]string) {
	rows = make([][]string, len(records))
	for _, c := range columns {
		if c.time && !times || !slices.ContainsFunc(records, func(r record) bool { return c.cell(r) != "" }) {
			continue
		}
		header = append(header, c.name)
		for i, r := range records {
			text := c.cell(r)
			if text == "" {
				text = "–"
			}
			rows[i] = append(rows[i], text)
		}
	}
	return header, rows
}

// tableTitle says what ratios are.
const tableTitle = "Ratios: the best peer's time, cost or memory over ours; of others, theirs over the best of ours"

// tableText is the table for the terminal.
func tableText(records []record) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	header, rows := cells(records, true)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return tableTitle + ".\n\n" + text.String()
}

// chartsOf has a chart for each operation: the ratios of the peers and variants, or temporary memory if nothing is
// timed, by size if the cases have sizes.
func chartsOf(records []record) (charts []*chart.Chart) {
	what, value := "theirs / ours", func(r record) float64 { return r.Ratio }
	if !timed(records) {
		what, value = "temporary MiB", func(r record) float64 { return float64(r.Temporary) / (1 << 20) }
	}
	var ops, cases []string
	series := map[string][]chart.Series{} // by operation
	var xLabel string
	for _, r := range records {
		y := value(r)
		if y == 0 || r.Role == ours && timed(records) {
			continue
		}
		if !slices.Contains(ops, r.Op) {
			ops = append(ops, r.Op)
		}
		i := slices.IndexFunc(series[r.Op], func(s chart.Series) bool { return s.Name == r.Impl })
		if i < 0 {
			i = len(series[r.Op])
			series[r.Op] = append(series[r.Op], chart.Series{Name: r.Impl})
		}
		s := &series[r.Op][i]
		s.Y = append(s.Y, y)
		for _, size := range []struct {
			of   string
			size int64
		}{{"bytes", r.Bytes}, {"tokens", int64(r.Tokens)}, {"blocks", int64(r.Depth)}} {
			if size.size > 0 {
				xLabel, s.X = size.of, append(s.X, float64(size.size))
			}
		}
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
	}
	for _, op := range ops {
		if xLabel != "" {
			charts = append(charts, chart.Line(op, xLabel, what, series[op]...).LogX())
			continue
		}
		// Bars need a value for every case: other implementations are in the table alone.
		bars := slices.DeleteFunc(series[op], func(s chart.Series) bool { return len(s.Y) < len(cases) })
		if len(bars) > 0 {
			charts = append(charts, chart.Bar(op, cases, bars...).Axes("", what))
		}
	}
	return charts
}

func timed(records []record) bool {
	return slices.ContainsFunc(records, func(r record) bool { return r.Rounds > 0 })
}
