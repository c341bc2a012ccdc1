package chart

import (
	"fmt"
	"strings"
	"testing"
)

// Two charts of different spans share an axis, and say so in both forms.
func TestRange(t *testing.T) {
	short := Gantt("short", Span{"l", "", "kind", 0, 3}).Range(0, 12)
	long := Gantt("long", Span{"l", "", "kind", 0, 11}).Range(0, 12)
	line := Line("line", "ms", "MB", Series{X: []float64{1, 2}, Y: []float64{1, 2}}).Range(0, 12)
	for _, c := range []*Chart{short, long, line} {
		svg, err := c.SVG()
		if err != nil || !strings.Contains(svg, ">12<") {
			t.Errorf("%s: no label 12 (error %v)", c.title, err)
		}
	}
	want := "0 … 12: K kind\nl  " + strings.Repeat("K", 15) + strings.Repeat("·", 45) + "\n"
	if !strings.Contains(short.Text(), want) {
		t.Errorf("the text is\n%s, without\n%s", short.Text(), want)
	}
}

func TestRangeErrors(t *testing.T) {
	line := Line("l", "x", "y", Series{X: []float64{1, 2}, Y: []float64{1, 2}})
	for _, test := range []struct {
		chart *Chart
		want  string
	}{
		{line.Range(0, 1.5), "Range(0, 1.5) for x from 1 to 2"},
		{line.Range(1.5, 3), "Range(1.5, 3)"},
		{line.Range(3, 0), "Range(3, 0)"},
		{line.Range(nan, 3), "NaN"},
		{line.Range(0, inf), "Inf"},
		{line.LogX().Range(0, 3), "log axis"},
		{Line("l", "x", "y", Series{Y: []float64{1}}).Range(0, 0), "Range(0, 0)"},
		{Gantt("g", Span{"l", "", "k", 0, 3}).Range(0, 2), "Range(0, 2) for x from 0 to 3"},
		{Bar("b", []string{"a"}, Series{Y: []float64{1}}).Range(0, 2), "Range is for"},
		{Roofline("r", 1, 1, Point{"a", 1, 1}).Range(0, 2), "Range is for"},
	} {
		if err := test.chart.Err(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v does not say %q", err, test.want)
		}
	}
}

// A name stands in a bar that holds it, and nothing in one that does not.
func TestGanttLabels(t *testing.T) {
	var spans []Span
	for i := range 40 { // about 17 pixels each
		spans = append(spans, Span{"l", fmt.Sprint("name ", i), "k", float64(i), float64(i + 1)})
	}
	svg, err := Gantt("g", append(spans, Span{"m", "whole", "k", 0, 10})...).SVG()
	if err != nil || strings.Contains(svg, "…") || strings.Contains(svg, "name") || !strings.Contains(svg, ">whole<") {
		t.Errorf("error %v, or names where they have no room, or none where they do", err)
	}
}
