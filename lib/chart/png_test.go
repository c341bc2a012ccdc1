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
	"time"

	"git.sr.ht/~sbinet/gg"
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

// TestCanvas compares what is covered with what geometry says.
func TestCanvas(t *testing.T) {
	const box, right = "c.beginPath(); c.rect(0, 0, 10, 10); ", "c.beginPath(); c.moveTo(10, 10); c.lineTo(60, 10); "
	for _, test := range []struct {
		name, script string
		want         float64 // pixels, all black
	}{
		{"a rectangle", "c.fillRect(10, 10, 20, 30)", 600},
		{"a line", right + "c.lineWidth = 4; c.stroke()", 200},
		{"with round ends", right + "c.lineWidth = 4; c.lineCap = 'round'; c.stroke()", 200 + 4*math.Pi},
		{"grown", "c.setTransform(1.5, 0, 0, 1.5, 0, 0); " + right + "c.lineWidth = 4; c.stroke()", 450},
		{"dashed", right + "c.lineTo(60, 40); c.lineWidth = 2; c.setLineDash([8, 4]); c.stroke()", 112},
		{"a closed line has its corners", "c.beginPath(); c.rect(50, 50, 20, 20); c.lineWidth = 8; c.stroke()",
			28*28 - 12*12 - 16*(4-math.Pi)},
		{"a disc", "c.beginPath(); c.arc(50, 50, 20, 0, 2 * Math.PI); c.fill()", math.Pi * 400},
		{"half of an ellipse, turned", "c.beginPath(); c.ellipse(50, 50, 40, 20, 1, 0, Math.PI); c.fill()",
			math.Pi * 400},
		{"scaled", "c.setTransform(2, 0, 0, 3, 5, 5); " + box + "c.fill()", 600},
		{"turned", "c.setTransform(0.6, -0.8, 0.8, 0.6, 40, 40); " + box + "c.fill()", 100},
		{"sheared", "c.setTransform(2, 1, 1, 3, 5, 5); " + box + "c.fill()", 500},
		{"a curve", "c.beginPath(); c.moveTo(0, 0); c.quadraticCurveTo(50, 100, 100, 0); c.fill()", 100 * 100 / 3.},
		{"the same as a cubic", "c.beginPath(); c.moveTo(0, 0); " +
			"c.bezierCurveTo(100/3, 200/3, 200/3, 200/3, 100, 0); c.fill()", 100 * 100 / 3.},
		{"half transparent", "c.globalAlpha = 0.5; c.fillStyle = 'rgba(0,0,0,0.5)'; c.fillRect(0, 0, 20, 20)", 100},
		{"clipped", "c.save(); " + box + "c.clip(); c.fillRect(5, 5, 20, 20); c.restore(); c.fillRect(50, 50, 10, " +
			"10)", 125},
		{"a gradient", "var g = c.createLinearGradient(0, 0, 100, 0); g.addColorStop(0, 'rgba(0,0,0,0)'); " +
			"g.addColorStop(1, '#000'); c.fillStyle = g; c.fillRect(0, 0, 100, 20)", 1000},
		{"out of sight", "c.fillRect(-1000, -1000, 10, 10)", 0},
	} {
		on, err := drawOn(test.script)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, m := 0.0, on.Image().(*image.RGBA)
		for i := 3; i < len(m.Pix); i += 4 {
			got += float64(m.Pix[i]) / 255
		}
		if math.Abs(got-test.want) > 2+test.want/100 {
			t.Errorf("%s covers %.1f pixels, want %.1f", test.name, got, test.want)
		}
	}
}

// drawOn runs a script with a canvas of 100 x 100 pixels as c.
func drawOn(script string) (*canvas, error) {
	e := &engine{limit: time.Minute}
	if err := e.load(); err != nil {
		return nil, err
	}
	on := &canvas{Context: gg.NewContext(100, 100)}
	e.vm.Set("go", on)
	_, err := e.vm.RunString("var c = canvas(go).getContext(); c.fillStyle = c.strokeStyle = '#000'; " + script)
	return on, err
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
