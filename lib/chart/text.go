package chart

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	textRows    = 12 // of a table
	textColumns = 12
	textCell    = 64 // characters of one cell
	sparkWidth  = 40 // characters
	sparkLevels = "▁▂▃▄▅▆▇█"
)

// Text returns the chart as plain text for terminals: the title and an aligned table of the data, shortened in the
// middle if it is long. A line chart has one sparkline per series, a Gantt chart one bar per lane. If the chart cannot
// be drawn, the text is the error.
func (c *Chart) Text() string {
	if err := c.Err(); err != nil {
		return err.Error() + "\n"
	}
	body := c.kind.text(c)
	if c.title == "" {
		return body
	}
	return plain(c.title) + "\n" + body
}

// textTable aligns rows under a header, numbers to the right. An ellipsis replaces middle rows and columns beyond the
// limits.
func textTable(header []string, rows [][]string) string {
	all := rows
	if header != nil && slices.ContainsFunc(header, func(s string) bool { return s != "" }) {
		all = append([][]string{header}, rows...)
	}
	if len(all) == 0 {
		return ""
	}
	columns := len(all[0])
	right := numeric(columns, rows)
	lines := make([][]string, len(all))
	for i, row := range all {
		lines[i] = shorten(row, textColumns, "…")
	}
	right = shorten(right, textColumns, false)
	widths := make([]int, len(right))
	for _, line := range lines {
		for j, cell := range line {
			line[j] = clip(plain(cell))
			widths[j] = max(widths[j], utf8.RuneCountInString(line[j]))
		}
	}
	head := len(all) - len(rows)
	var out []string
	for _, line := range lines {
		var b strings.Builder
		for j, cell := range line {
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell))
			if right[j] {
				cell, pad = pad, cell
			}
			b.WriteString(cell + pad + "  ")
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	out = append(out[:head], shorten(out[head:], textRows, fmt.Sprintf("… %d rows in all", len(rows)))...)
	return strings.Join(out, "\n") + "\n"
}

// shorten replaces the middle of a list that is longer than limit by gap.
func shorten[T any](list []T, limit int, gap T) []T {
	if len(list) <= limit {
		return slices.Clone(list)
	}
	head := limit/2 + 1
	return slices.Concat(list[:head], []T{gap}, list[len(list)-(limit-1-head):])
}

func clip(s string) string {
	if r := []rune(s); len(r) > textCell {
		return string(r[:textCell-1]) + "…"
	}
	return s
}

// sparkline draws values as a row of bars. If there are more values than columns, each bar is the mean of several.
func sparkline(values []float64, log bool) string {
	n := min(len(values), sparkWidth)
	means := make([]float64, n)
	for i := range means {
		share := values[i*len(values)/n : (i+1)*len(values)/n]
		for _, v := range share {
			if log {
				v = math.Log(v)
			}
			means[i] += v / float64(len(share))
		}
	}
	low, high := slices.Min(means), slices.Max(means)
	levels := []rune(sparkLevels)
	out := make([]rune, n)
	for i, m := range means {
		at := 0
		if high > low {
			at = int((m - low) / (high - low) * float64(len(levels)-1))
		}
		out[i] = levels[at]
	}
	return string(out)
}

// number formats integers in full and other numbers with four significant digits.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e9 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// plain is s on one line, without control characters.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, printable(s))
}

// printable replaces characters that XML and HTML forbid, since one would break the picture.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r' || (r >= 0x20 && r <= 0xD7FF) || (r >= 0xE000 && r <= 0xFFFD) ||
			r >= 0x10000:
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}
