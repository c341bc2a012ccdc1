package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
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
	{"tokens/s", true, func(r record) string { return cell("%.4g", r.TokensPerSecond) }},
	{"bus GB/s", true, func(r record) string { return cell("%.4g", r.BusBW) }},
	{"TFLOP/s", false, func(r record) string { return cell("%.4g", r.TFLOPS) }},
	{"MFU %", false, func(r record) string { return cell("%.1f", 100*r.MFU) }},
	{"causal MFU %", false, func(r record) string { return cell("%.1f", 100*r.CausalMFU) }},
	{"over", false, func(r record) string { return r.Over }},
	{"cost", false, func(r record) string { return cell("%.3f", r.Cost) }},
	{"of least times", false, func(r record) string { return cell("%.3f", r.MinCost) }},
	{"ratio", false, func(r record) string { return ratioCell(r.Ratio) }},
	{"least", false, func(r record) string { return ratioCell(r.RatioMin) }},
	{"of least times", false, func(r record) string { return ratioCell(r.MinRatio) }},
	{"best peer", false, func(r record) string { return r.Best }},
	{"% of limit", false, func(r record) string { return cell("%.0f", 100*r.OfLimit) }},
	{"first step, ms", true, func(r record) string { return cell("%.4g", r.FirstMS) }},
	{"first step's ratio", false, func(r record) string { return cell("%.2f", r.FirstRatio) }},
	{"a block's weights, MiB", false, func(r record) string { return mebibytes(r.BlockBytes) }},
	{"a device's gradients, MiB", false, func(r record) string { return mebibytes(r.GradientBytes) }},
	{"temporary MiB", false, func(r record) string { return mebibytes(r.Temporary) }},
	{"ratio", false, func(r record) string { return cell("%.2f", r.TempRatio) }},
	{"all planned MiB", false, func(r record) string { return mebibytes(r.planned()) }},
	{"ratio", false, func(r record) string { return cell("%.2f", r.MemoryRatio) }},
	{"peak RSS MiB", true, func(r record) string { return mebibytes(r.PeakRSS) }},
	{"rise of RSS MiB", false, func(r record) string { return mebibytes(r.ExtraRSS) }},
	{"peak GiB of the GPU", false, func(r record) string { return cell("%.4g", float64(r.DevicePeak)/(1<<30)) }},
	{"load", false, func(r record) string { return cell("%.1f", r.Load1) }},
}

// cell writes a number, and nothing if there is none.
func cell(format string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// ratioCell keeps two digits of a small ratio.
func ratioCell(ratio float64) string {
	if ratio < 0.1 {
		return cell("%.2g", ratio)
	}
	return cell("%.2f", ratio)
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

func timed(records []record) bool {
	return slices.ContainsFunc(records, func(r record) bool { return r.Rounds > 0 })
}
