package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/shardbook/shardbook/lib/chart"
)

// table is one for people: in a terminal, on a page, or in a document.
type table struct {
	title  string
	header []string
	rows   [][]string
}

// none is a cell with nothing to say.
const none = "–"

// pivot has a row a case and a column an implementation of those roles.
func pivot(title string, records []record, cell func(record) string, roles ...role) table {
	t := table{title: title, header: []string{"case"}}
	cells := map[[2]string]string{}
	var cases []string
	for _, r := range records {
		if !slices.Contains(roles, r.Role) {
			continue
		}
		if !slices.Contains(t.header, r.Impl) {
			t.header = append(t.header, r.Impl)
		}
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		cells[[2]string{r.Case, r.Impl}] = cell(r)
	}
	for _, name := range cases {
		row := []string{name}
		for _, impl := range t.header[1:] {
			row = append(row, cmp.Or(cells[[2]string{name, impl}], none))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// said are the different cells of a row of a pivot that have something to say, in their order.
func said(row []string) string {
	var cells []string
	for _, cell := range row[1:] {
		if cell != none && !slices.Contains(cells, cell) {
			cells = append(cells, cell)
		}
	}
	return cmp.Or(strings.Join(cells, ", "), none)
}

// upright is the table with its rows as columns where it is wider than high.
func (t table) upright() table {
	if len(t.header) <= len(t.rows)+1 {
		return t
	}
	turned := table{title: t.title, header: []string{t.header[0]}}
	for _, row := range t.rows {
		turned.header = append(turned.header, row[0])
	}
	for i, name := range t.header[1:] {
		row := []string{name}
		for _, of := range t.rows {
			row = append(row, of[i+1])
		}
		turned.rows = append(turned.rows, row)
	}
	return turned
}

func (t table) chart() *chart.Chart { return chart.Table(t.title, t.header, t.rows) }

func (t table) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", t.title)
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range slices.Insert(slices.Clone(t.rows), 0, t.header) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return text.String()
}

func (t table) markdown() string {
	var text strings.Builder
	rule := slices.Repeat([]string{"---"}, len(t.header))
	fmt.Fprintf(&text, "%s\n\n", t.title)
	for _, row := range slices.Insert(slices.Clone(t.rows), 0, t.header, rule) {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
	}
	return text.String()
}
