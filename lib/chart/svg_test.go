package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// gallery is one chart of every kind that has a picture.
func gallery() []*Chart {
	y := []float64{3, 1, 2}
	names := []string{"a", "b", "c"}
	return []*Chart{
		Line("line", "x", "y", Series{Name: "s", Y: y}, Series{Name: "t", X: y, Y: y}),
		Line("log", "x", "y", Series{X: y, Y: y}).LogX().LogY(),
		Scatter("scatter", "x", "y", Series{Name: "s", Y: y}),
		Bar("bar", names, Series{Name: "s", Y: y}, Series{Name: "t", Y: y}),
		Bar("stacked", names, Series{Name: "s", Y: y}, Series{Name: "t", Y: y}).Stacked(),
		HeatMap("heat", names, names, [][]float64{y, y, y}),
		HeatMap("one value", names[:1], names[:1], [][]float64{{0}}),
		Histogram("histogram", y, 2),
		Gantt("gantt", Span{"l", "a", "k", 0, 2}, Span{"l", "b", "j", 1, 3}, Span{"m", "c", "k", 1, 1}),
		Roofline("roofline", 1e12, 1e11, Point{"a", 0.1, 5e9}, Point{"b", 100, 5e11}),
		Line("range", "x", "y", Series{X: y, Y: y}).Range(0.5, 7),
		Line("rounding", "x", "y", Series{Y: []float64{1, 1 + 2e-16, 1}}),
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
		for _, s := range []string{"href=", "url(http", "NaN", "undefined"} {
			if strings.Contains(svg, s) {
				t.Errorf("%s: the picture contains %s", c.title, s)
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
	few, err := Scatter("s", "x", "y", Series{Y: make([]float64, 1)}).SVG()
	if err != nil {
		t.Fatal(err)
	}
	many, err := Scatter("s", "x", "y", Series{Y: make([]float64, maxMarks)}).SVG()
	if err != nil {
		t.Fatal(err)
	}
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
	fresh := &engine{limit: time.Minute}
	charts := gallery()
	for i := range charts {
		c := charts[len(charts)-1-i]
		p, err := c.picture()
		if err != nil {
			t.Fatal(err)
		}
		second, err := p.svg()
		if err != nil {
			t.Fatal(err)
		}
		again, err := fresh.render(p, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if second != first[c.title] || again != second {
			t.Errorf("%s: another picture the second time", c.title)
		}
	}
}

func TestRenderStopsAndRecovers(t *testing.T) {
	e := &engine{limit: 50 * time.Millisecond}
	if err := e.load(); err != nil {
		t.Fatal(err)
	}
	for name, function := range map[string]string{
		"endless loop":      "while (true) {}",
		"endless recursion": "(function f() { return f() + 1; })()",
		"exception":         "throw new Error('no')",
	} {
		option := fmt.Sprintf(`{"yAxis":{},"xAxis":{"axisLabel":{"formatter":"__f__function () { %s }__f__"}},`+
			`"series":[{"type":"line","data":[[1,2]]}]}`, function)
		if svg, err := e.render(picture{options: option, width: 300, height: 300}, nil, 0); err == nil {
			t.Errorf("%s: no error, but %d bytes", name, len(svg))
		}
	}
	e.limit = time.Minute
	sound := picture{options: `{"series":[{"type":"pie","data":[1,2]}]}`, width: 300, height: 300}
	if _, err := e.render(sound, nil, 0); err != nil {
		t.Errorf("after failures: %v", err)
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

// On one scale one value has one colour, whatever else a map holds; a narrow picture whose cells state their values
// has no key.
func TestScale(t *testing.T) {
	xs, ys := []string{"x", "y"}, []string{"a"}
	svg := func(c *Chart) string {
		s, err := c.SVG()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	few := svg(HeatMap("few", xs, ys, [][]float64{{0, 4}}).Scale(0, 16))
	many := svg(HeatMap("many", xs, ys, [][]float64{{4, 16}}).Scale(0, 16))
	colour := "rgb(59,82,139)" // the ramp's second: 4 is a quarter of the way
	for name, s := range map[string]string{"few": few, "many": many} {
		if !strings.Contains(s, colour) || !strings.Contains(s, ">16<") {
			t.Errorf("%s: no cell of the colour %s, or no key up to 16", name, colour)
		}
	}
	if s := svg(HeatMap("few", xs, ys, [][]float64{{0, 4}}).Scale(0, 16).Size(300, 200)); strings.Contains(s, ">16<") {
		t.Error("a narrow picture has a key")
	}
}

// Labels are as short as their numbers allow.
func TestLabels(t *testing.T) {
	for want, c := range map[string]*Chart{
		">1e-7<":  Scatter("log", "x", "y", Series{Name: "s", X: []float64{1, 2}, Y: []float64{1e-7, 2}}).LogY(),
		">7<":     HeatMap("whole numbers", []string{"a", "b"}, []string{"c"}, [][]float64{{0, 7}}),
		">0.500<": HeatMap("fractions", []string{"a", "b"}, []string{"c"}, [][]float64{{0, 0.5}}),
	} {
		svg, err := c.SVG()
		if err != nil || !strings.Contains(svg, want) {
			t.Errorf("%s: no label %q (error %v)", c.title, want, err)
		}
	}
}
