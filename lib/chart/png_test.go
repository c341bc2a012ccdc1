package chart

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// drawn is the picture of a chart as a notebook has it.
func drawn(t *testing.T, c *Chart) image.Image {
	t.Helper()
	fragment := must.Get(c.fragment(true, true))(t)
	m := regexp.MustCompile(`src="data:image/png;base64,([^"]*)"`).FindStringSubmatch(fragment)
	if m == nil {
		t.Fatalf("%s has no PNG image: %.300s", c.title, fragment)
	}
	data := must.Get(base64.StdEncoding.DecodeString(m[1]))(t)
	picture := must.Get(png.Decode(bytes.NewReader(data)))(t)
	return picture
}

// TestPNGOfEveryKind holds that no kind of chart needs what a canvas cannot draw, with what a notebook may ask of it.
func TestPNGOfEveryKind(t *testing.T) {
	y := []float64{1, 30, 2}
	long := strings.Repeat("long ", 30)
	for _, c := range []*Chart{
		Line("line → Φ", "x", "y", Series{Name: "µ", Y: y}, Series{Name: long, Y: y}).LogY(),
		Line(long, "x", "y", many(9)...),
		Scatter("scatter", "x", "y", many(7)...),
		Bar("bar", []string{long, long + "b", "c"}, Series{Y: y}).Stacked(),
		HeatMap("small", []string{"a", "b", "c"}, []string{"d"}, [][]float64{y}),
		HeatMap("keyed", strings.Split("abcdefghijklmnop", ""), []string{"d"}, [][]float64{make([]float64, 16)}),
		Gantt("gantt", Span{"a", "label", "k", 0, 1}, Span{"a", "", "l", 0.5, 2}),
		Histogram("histogram", y, 5),
		Roofline("roofline", 1e12, 1e11, Point{"matmul", 100, 8e11}, Point{"add", 0.125, 1e10}),
	} {
		w, h := c.size()
		if got := drawn(t, c).Bounds().Size(); got != image.Pt(2*w, 2*h) {
			t.Errorf("%s: %v pixels for %d x %d", c.title, got, w, h)
		}
	}
}

func many(n int) (all []Series) {
	for i := range n {
		all = append(all, Series{Name: strings.Repeat("s", i+1), Y: []float64{float64(i), 1}})
	}
	return all
}

// TestPNGColours looks at pixels whose colours are known.
func TestPNGColours(t *testing.T) {
	picture := drawn(t, HeatMap("", []string{"a", "b"}, []string{"c"}, [][]float64{{0, 10}}).Size(300, 200))
	at := func(x, y int) color.NRGBA { return color.NRGBAModel.Convert(picture.At(x, y)).(color.NRGBA) }
	if c := at(2, 2); c != (color.NRGBA{255, 255, 255, 255}) {
		t.Errorf("a corner is %v, want white", c)
	}
	// 30 pixels from the sides of the cells, clear of the numbers in them.
	for x, want := range map[int]string{100: ramp[0], 500: ramp[len(ramp)-1]} {
		r, g, b := rgb(want)
		c := at(x, 80)
		if far := math.Abs(float64(c.R)-r) + math.Abs(float64(c.G)-g) + math.Abs(float64(c.B)-b); far > 12 {
			t.Errorf("at %d: %v, want about %s", x, c, want)
		}
	}
}

// TestPNGOfUnknown holds that a notebook has the SVG image of what a canvas does not draw.
func TestPNGOfUnknown(t *testing.T) {
	radial := object{"type": "radial", "colorStops": []any{object{"offset": 0, "color": "red"}}}
	pie := object{"type": "pie", "data": []any{1}, "itemStyle": object{"color": radial}}
	for _, c := range []*Chart{
		Bar("对", []string{"a"}, Series{Y: []float64{1}}),
		{title: "radial", kind: &wrapped{given: object{"series": []any{pie}}}},
	} {
		fragment, err := c.fragment(true, true)
		if err != nil || !strings.Contains(fragment, "data:image/svg+xml;base64,") {
			t.Errorf("%s has no SVG image: %v, %.200s", c.title, err, fragment)
		}
	}
}

func BenchmarkPNG(b *testing.B) {
	c := Line("Loss", "step", "nats", many(5)...)
	for b.Loop() {
		must.Get(c.fragment(true, true))(b)
	}
}
