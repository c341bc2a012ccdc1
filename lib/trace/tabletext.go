package trace

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
)

// column is one column of a table. A column with a condition is omitted if no row meets it.
type column struct {
	name string
	cell func(Row) string
	when func(Row) bool
}

var columns = []column{
	{"stream", func(r Row) string { return oneLine(r.Stream) }, nil},
	{"name", func(r Row) string { return oneLine(r.Name) }, nil},
	{"calls", func(r Row) string { return strconv.Itoa(r.Calls) }, nil},
	{"total ms", func(r Row) string { return inMS(r.Total) }, nil},
	{"mean ms", func(r Row) string { return inMS(r.Mean()) }, nil},
	{"min ms", func(r Row) string { return inMS(r.Min) }, nil},
	{"max ms", func(r Row) string { return inMS(r.Max) }, nil},
	{"share %", func(r Row) string { return strconv.FormatFloat(100*r.Share, 'f', 1, 64) }, nil},
	{"GFLOP/s", func(r Row) string { return perNanosecond(r.FLOPs, r.Total) },
		func(r Row) bool { return r.FLOPs != 0 }},
	{"MB", func(r Row) string { return digits(float64(r.Bytes)/1e6, 6) },
		func(r Row) bool { return r.Bytes != 0 }},
	{"GB/s", func(r Row) string { return perNanosecond(r.Bytes, r.Total) }, func(r Row) bool { return r.Bytes != 0 }},
	{"detail", func(r Row) string { return oneLine(r.Detail) }, func(r Row) bool { return r.Detail != "" }},
}

// Chart shows the table in a notebook: times in ms, shares in %, and rates where work was counted.
func (t Table) Chart(title string) *chart.Chart {
	var header []string
	rows := make([][]string, len(t))
	for _, c := range columns {
		if c.when != nil && !slices.ContainsFunc(t, c.when) {
			continue
		}
		header = append(header, c.name)
		for i, r := range t {
			rows[i] = append(rows[i], c.cell(r))
		}
	}
	return chart.Table(title, header, rows)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func inMS(d time.Duration) string { return digits(ms(d), 6) }

// perNanosecond formats amount per nanosecond, which equals 10⁹ of it per second.
func perNanosecond(amount int64, in time.Duration) string {
	if in <= 0 {
		return ""
	}
	return digits(float64(amount)/float64(in), 4)
}

// digits formats v with four significant digits, but at most places decimals.
func digits(v float64, places int) string {
	if v == 0 {
		return "0"
	}
	after := 3 - int(math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(v, 'f', max(0, min(after, places)), 64)
}
