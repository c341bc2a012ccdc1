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
)

// drawn is the picture of a chart as a notebook has it.
func drawn(t *testing.T, c *Chart) image.Image {
	t.Helper()
	fragment, err := c.fragment(true, true)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`src="data:image/png;base64,([^"]*)"`).FindStringSubmatch(fragment)
	if m == nil {
		t.Fatalf("%s has no PNG image: %.300s", c.title, fragment)
	}
	data, err := base64.StdEncoding.DecodeString(m[1])
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return picture
}

// TestPNGOfEveryKind holds that no kind of chart needs what raster cannot draw, with what a notebook may ask of it.
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

// TestRaster compares what is covered with what geometry says.
func TestRaster(t *testing.T) {
	for _, test := range []struct {
		name, svg string
		want      float64 // pixels, all black
	}{
		{"a rectangle", `<path d="M10 10l20 0l0 30l-20 0Z"/>`, 600},
		{"stroked", `<path d="M10 10L60 10" fill="none" stroke="#000" stroke-width="4"/>`, 200},
		{"a disc", `<path d="M70 50A20 20 0 1 1 70 49.999"/>`, math.Pi * 400},
		{"half of it", `<path d="M30 50A20 20 0 0 1 70 50Z"/>`, math.Pi * 200},
		{"scaled", `<path d="M0 0l10 0l0 10l-10 0Z" transform="matrix(2,0,0,3,5,5)"/>`, 600},
		{"turned", `<path d="M0 0l10 0l0 10l-10 0Z" transform="matrix(0.6,-0.8,0.8,0.6,40,40)"/>`, 100},
		{"a curve", `<path d="M0 0Q50 100 100 0Z"/>`, 100 * 100 / 3.},
		{"the same as a cubic", `<path d="M0 0C33.3333 66.6667 66.6667 66.6667 100 0Z"/>`, 100 * 100 / 3.},
		{"half transparent", `<path d="M10 10l20 0l0 30l-20 0Z" fill-opacity="0.5"/>`, 300},
		{"clipped", `<defs><clipPath id="c"><path d="M0 0l20 0l0 20l-20 0Z"/></clipPath></defs>` +
			`<g clip-path="url(#c)"><path d="M10 10l80 0l0 80l-80 0Z"/></g>`, 100},
		{"dashed", `<path d="M10 10L30 10L70 10" fill="none" stroke="#000" stroke-width="2" stroke-dasharray="8,4"/>`, 80},
		{"out of sight", `<path d="M-1000 -1000l10 0l0 10Z"/>`, 0},
	} {
		m, err := raster(`<svg width="100" height="100">`+test.svg+`</svg>`, 1)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got := 0.0
		for i := 3; i < len(m.Pix); i += 4 {
			got += float64(m.Pix[i]) / 255
		}
		if math.Abs(got-test.want) > 2+test.want/100 {
			t.Errorf("%s covers %.1f pixels, want %.1f", test.name, got, test.want)
		}
	}
}

// TestRasterRefuses what it would draw wrongly; then the notebook has the SVG image.
func TestRasterRefuses(t *testing.T) {
	for _, svg := range []string{
		"", `<svg/>`, `<svg width="10" height="10"><image/></svg>`, `<svg width="10" height="10"><path d="M0 0S1 1 2 2"/></svg>`,
		`<svg width="10" height="10"><path d="L0 0"/></svg>`, `<svg width="10" height="10"><path d="M0 0L1"/></svg>`,
		`<svg width="10" height="10"><path d="M0 0" fill="teal"/></svg>`, `<svg width="10" height="10"><path d="M0 0" fill="url(#a)"/></svg>`,
		`<svg width="10" height="10"><path d="M0 0" transform="rotate(3)"/></svg>`, `<svg width="10" height="10"><text>a</text></svg>`,
		`<svg width="10" height="10"><g clip-path="url(#a)"/></svg>`, `<svg width="10" height="10"><path d="M0 0Z5 5"/></svg>`,
	} {
		if _, err := raster(svg, 1); err == nil {
			t.Errorf("%q is drawn", svg)
		}
	}
	fragment, err := Bar("对", []string{"a"}, Series{Y: []float64{1}}).fragment(true, true)
	if err != nil || !strings.Contains(fragment, "data:image/svg+xml;base64,") {
		t.Errorf("no image of letters that the fonts lack: %v, %.200s", err, fragment)
	}
}

func BenchmarkPNG(b *testing.B) {
	p, err := Line("Loss", "step", "nats", many(5)...).draw()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := pngImage(p); err != nil {
			b.Fatal(err)
		}
	}
}
