package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/memest"
)

// shown is the number of lines of a kind without --detail.
const shown = 4

// largestLines prints the largest lines of each kind.
func (w *estimateText) largestLines() {
	w.line("%-14s %-44s %7s %11s", "", "", "times", w.unit.name)
	for _, kind := range memest.Kinds() {
		var items []estimateItem
		for _, it := range w.Items {
			if it.Kind == kind {
				items = append(items, it)
			}
		}
		slices.SortStableFunc(items, func(a, b estimateItem) int { return cmp.Compare(b.Bytes, a.Bytes) })
		title, rest, more := string(kind), int64(0), 0
		for i, it := range items {
			if i >= shown && len(items) > shown+1 {
				rest, more = rest+it.Bytes, more+1
				continue
			}
			w.line("%-14s %-44s %7d %11s", title, cut(it.Name, 44), it.Count, w.size(it.Bytes))
			title = ""
		}
		if more > 0 {
			w.line("%-14s %-44s %7s %11s", "", fmt.Sprintf("%d more lines (--detail)", more), "", w.size(rest))
		}
	}
}

// cut shortens a text to a number of characters.
func cut(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return text
}

// everyLine prints all lines with their formulas and values.
func (w *estimateText) everyLine() {
	for _, it := range slices.Concat(w.Items, w.HostItems) {
		name := it.Name
		if it.Host {
			name += " (host memory)"
		}
		w.line("%-14s %-44s %7d %11s", it.Kind, cut(name, 44), it.Count, w.size(it.Bytes))
		for _, more := range []string{it.Formula, it.Values, it.Source} {
			if more != "" {
				w.line("    %s", more)
			}
		}
	}
}

func (w *estimateText) totals() {
	w.line("%-67s %11s", "total of a device", w.size(w.Total))
	if w.Host > 0 {
		w.line("%-67s %11s", "host memory for each device", w.size(w.Host))
	}
	if w.Model == nil {
		w.line("\nThese are states alone; activations and buffers follow from a model's sizes.")
	}
	if w.WorstMoment != "" {
		w.line("\nMost is needed at %s.", w.WorstMoment)
	}
}
