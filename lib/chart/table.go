package chart

import (
	"errors"
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
)

type table struct {
	header []string
	rows   [][]string
}

// Table shows rows of text under a header, with columns of numbers aligned right. As HTML it is a table element.
//
// It is an error if the header is empty or a row has another length. A table may have no rows.
func Table(title string, header []string, rows [][]string) *Chart {
	copied := make([][]string, len(rows))
	for i, row := range rows {
		copied[i] = slices.Clone(row)
	}
	return &Chart{title: title, kind: &table{slices.Clone(header), copied}}
}

func (k *table) check(*Chart) error {
	if len(k.header) == 0 {
		return errors.New("no columns")
	}
	for i, row := range k.rows {
		if len(row) != len(k.header) {
			return fmt.Errorf("row %d has %d cells for %d columns", i, len(row), len(k.header))
		}
	}
	return checkCount("cells", len(k.rows)*len(k.header), maxPoints)
}

func (k *table) options(*Chart) object { return nil }

func (k *table) text(*Chart) string { return textTable(k.header, k.rows) }

// html needs no script and no picture: every notebook shows a table element, trusted or not.
func (k *table) html(title string) string {
	right := numeric(len(k.header), k.rows)
	row := func(tag string, cells []string) string {
		var b strings.Builder
		for j, text := range cells {
			align := "left"
			if right[j] {
				align = "right"
			}
			fmt.Fprintf(&b, `<%s style="text-align:%s">%s</%[1]s>`, tag, align, escape(text))
		}
		return "<tr>" + b.String() + "</tr>"
	}
	var body strings.Builder
	for _, cells := range k.rows {
		body.WriteString(row("td", cells))
	}
	caption := ""
	if title != "" {
		caption = "<caption>" + escape(title) + "</caption>"
	}
	return "<table>" + caption + "<thead>" + row("th", k.header) + "</thead><tbody>" +
		body.String() + "</tbody></table>"
}

// numeric tells which columns hold numbers in every row.
func numeric(columns int, rows [][]string) []bool {
	is := make([]bool, columns)
	for j := range is {
		is[j] = len(rows) > 0
		for _, row := range rows {
			if _, err := strconv.ParseFloat(row[j], 64); err != nil {
				is[j] = false
			}
		}
	}
	return is
}

func escape(s string) string { return html.EscapeString(printable(s)) }
