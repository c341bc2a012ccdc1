package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/echarts/draw"
	"github.com/shardbook/shardbook/internal/must"
)

// shown is a chart with texts that its picture has, and texts that it lacks.
type shown struct {
	*Chart
	has, lacks []string
}

// gallery has every kind of chart with a picture.
func gallery() []shown {
	y := []float64{3, 1, 2}
	names := []string{"a", "b", "c"}
	xs, ys := []string{"x", "y"}, []string{"a"}
	ranged := []string{">12<"}
	const quarter = "rgb(59,82,139)" // the second colour of a heat map's ramp
	var crowd []Span
	for i := range 40 { // about 17 pixels each
		crowd = append(crowd, Span{"l", fmt.Sprint("name ", i), "k", float64(i), float64(i + 1)})
	}
	return []shown{
		{Line("line", "x", "y", Series{Name: "s", Y: y}, Series{Name: "t", X: y, Y: y}), nil, nil},
		{Line("log", "x", "y", Series{X: y, Y: y}).LogX().LogY(), nil, nil},
		{Scatter("scatter", "x", "y", Series{Name: "s", Y: y}), nil, nil},
		{Bar("bar", names, Series{Name: "s", Y: y}, Series{Name: "t", Y: y}), nil, nil},
		{Bar("stacked", names, Series{Name: "s", Y: y}, Series{Name: "t", Y: y}).Stacked(), nil, nil},
		{HeatMap("heat", names, names, [][]float64{y, y, y}), nil, nil},
		{HeatMap("one value", names[:1], names[:1], [][]float64{{0}}), nil, nil},
		{Histogram("histogram", y, 2), nil, nil},
		{Gantt("gantt", Span{"l", "a", "k", 0, 2}, Span{"l", "b", "j", 1, 3}, Span{"m", "c", "k", 1, 1}), nil, nil},
		{Line("rounding", "x", "y", Series{Y: []float64{1, 1 + 2e-16, 1}}), nil, nil},
		{Roofline("roofline", 1e12, 1e11, Point{"matmul", 100, 8e11}, Point{"add", 0.125, 1e10}),
			[]string{">matmul<", ">add<", ">bound by memory<", ">1e12<", ">0.01<", ">1000<"}, nil},
		{Roofline("numbers far apart", 1e30, 1e15, Point{"a", 1e-15, 1e30}, Point{"b", 1e30, 1e-15}), nil, nil},

		// Charts of different spans share an axis.
		{Line("range", "x", "y", Series{X: y, Y: y}).Range(0, 12), ranged, nil},
		{Gantt("short", Span{"l", "", "kind", 0, 3}).Range(0, 12), ranged, nil},
		{Gantt("long", Span{"l", "", "kind", 0, 11}).Range(0, 12), ranged, nil},

		// On one scale one value has one colour; a narrow picture whose cells state their values has no key.
		{HeatMap("few", xs, ys, [][]float64{{0, 4}}).Scale(0, 16), []string{quarter, ">16<"}, nil},
		{HeatMap("many", xs, ys, [][]float64{{4, 16}}).Scale(0, 16), []string{quarter, ">16<"}, nil},
		{HeatMap("narrow", xs, ys, [][]float64{{0, 4}}).Scale(0, 16).Size(300, 200), nil, []string{">16<"}},

		// A name is in a bar with room for it, and labels are as short as their numbers allow.
		{Gantt("crowd", append(crowd, Span{"m", "full", "k", 0, 10})...), []string{">full<"}, []string{"…", "name"}},
		{Scatter("tiny", "x", "y", Series{X: []float64{1, 2}, Y: []float64{1e-7, 2}}).LogY(), []string{">1e-7<"}, nil},
		{HeatMap("whole numbers", xs, ys, [][]float64{{0, 7}}), []string{">7<"}, nil},
		{HeatMap("fractions", xs, ys, [][]float64{{0, 0.5}}), []string{">0.500<"}, nil},
	}
}

// elements counts the elements of a document and returns its text; it fails on what is not well-formed.
func elements(svg string) (count map[string]int, text string, err error) {
	count = map[string]int{}
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count, text, nil
		}
		if err != nil {
			return nil, "", err
		}
		switch token := token.(type) {
		case xml.StartElement:
			count[token.Name.Local]++
		case xml.CharData:
			text += string(token)
		}
	}
}

func TestSVGShowsTheChart(t *testing.T) {
	for _, c := range gallery() {
		svg, err := c.SVG()
		if err != nil {
			t.Error(err)
			continue
		}
		count, text, err := elements(svg)
		if err != nil {
			t.Errorf("%s: %v", c.title, err)
		}
		if !strings.Contains(text, c.title) || count["path"] == 0 {
			t.Errorf("%s: no title or no shapes in %s", c.title, svg)
		}
		for _, s := range append(c.lacks, "href=", "url(http", "NaN", "undefined") {
			if strings.Contains(svg, s) {
				t.Errorf("%s: the picture contains %s", c.title, s)
			}
		}
		for _, s := range c.has {
			if !strings.Contains(svg, s) {
				t.Errorf("%s: no %s in the picture", c.title, s)
			}
		}
		nameSpaces := strings.NewReplacer("http://www.w3.org/2000/svg", "", "http://www.w3.org/1999/xlink", "")
		if strings.Contains(nameSpaces.Replace(svg), "://") {
			t.Errorf("%s: an address beyond the name spaces", c.title)
		}
	}
}

// ECharts draws large data in steps, of which an image would show the first alone.
func TestSVGShowsEveryPoint(t *testing.T) {
	few := must.Get(Scatter("s", "x", "y", Series{Y: make([]float64, 1)}).SVG())(t)
	many := must.Get(Scatter("s", "x", "y", Series{Y: make([]float64, maxMarks)}).SVG())(t)
	if got := strings.Count(many, palette[0]) - strings.Count(few, palette[0]) + 1; got != maxMarks {
		t.Errorf("%d of %d points are drawn", got, maxMarks)
	}
}

func TestSVGIsTheSameEachTime(t *testing.T) {
	first := map[string]string{}
	for _, c := range gallery() {
		first[c.title], _ = c.SVG()
	}
	// In another order, and with an engine that has drawn nothing yet.
	var fresh draw.Engine
	for _, c := range slices.Backward(gallery()) {
		second := must.Get(c.SVG())(t)
		again := must.Get(fresh.Draw(must.Get(c.request())(t)))(t)
		if second != first[c.title] || string(again.Data) != second {
			t.Errorf("%s: another picture the second time", c.title)
		}
	}
}

func TestEChartsIsTheVendoredOne(t *testing.T) {
	if !strings.Contains(ECharts(), `version="5.6.0"`) {
		t.Error("not ECharts 5.6.0")
	}
	if n := strings.Count(Loader(), "</script"); n != 1 {
		t.Errorf("the loader has %d end tags", n)
	}
}
