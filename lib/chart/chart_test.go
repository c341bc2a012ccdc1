package chart

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/internal/must"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

func TestErrors(t *testing.T) {
	line := func(s ...Series) *Chart { return Line("loss", "step", "nats", s...) }
	bar := func(s ...Series) *Chart { return Bar("time", []string{"dp", "tp"}, s...) }
	ones := func(n int) []float64 { return make([]float64, n) }
	ranged := Line("l", "x", "y", Series{X: []float64{1, 2}, Y: []float64{1, 2}})
	at := Point{"a", 1, 1}
	for _, test := range []struct {
		chart *Chart
		want  string
	}{
		{nil, "no chart"},
		{&Chart{}, "no chart"},
		{line(), `chart "loss": no series`},
		{line(Series{Name: "a"}), `"a" has no points`},
		{line(Series{Name: "a", X: []float64{1, 2}, Y: []float64{1}}), "2 X and 1 Y"},
		{line(Series{Name: "a", X: []float64{}, Y: []float64{1}}), "0 X and 1 Y"},
		{line(Series{Name: "a", Y: []float64{1, nan}}), `"a": Y[1] is NaN`},
		{line(Series{Name: "a", X: []float64{-inf}, Y: []float64{1}}), `"a": X[0] is -Inf`},
		{line(Series{Y: []float64{1e301}}), "too large"},
		{line(Series{Y: []float64{1e-310}}), "too small"},
		{line(Series{Name: "a", Y: ones(1)}, Series{Name: "a", Y: ones(1)}), `two series are named "a"`},
		{line(Series{Name: "a", Y: ones(1)}, Series{Y: ones(1)}), "series 1 has no name"},
		{line(Series{Y: ones(maxPoints + 1)}), "50001 points"},
		{Scatter("s", "x", "y", Series{Y: ones(maxMarks + 1)}), "5001 points"},
		{line(Series{Name: "a", X: []float64{1}, Y: []float64{0}}).LogY(), "log axis"},
		{Scatter("s", "x", "y", Series{X: []float64{-1}, Y: []float64{1}}).LogX(), "log axis"},
		{line(Series{Y: []float64{1}}).LogX(), "has no X"},
		{line(Series{Y: ones(1)}).Size(20, 300), "size 20 x 300"},
		{line(Series{Y: ones(1)}).Size(0, 0), "size 0 x 0"},
		{line(Series{Y: ones(1)}).Size(-640, 300), "size"},
		{line(Series{Y: ones(1)}).Stacked(), "Stacked is for Bar"},

		{Bar("time", nil, Series{Name: "a"}), "no categories"},
		{Bar("time", []string{"a", "a"}, Series{Y: ones(2)}), `two category labels are "a"`},
		{bar(), "no series"},
		{bar(Series{Name: "a", Y: ones(1)}), "1 Y for 2 categories"},
		{bar(Series{Name: "a", X: ones(2), Y: ones(2)}), "has X"},
		{bar(Series{Name: "a", Y: []float64{nan, 1}}), "NaN"},
		{bar(Series{Y: []float64{0, 1}}).LogY(), "log axis"},
		{bar(Series{Y: []float64{1, 1}}).LogY().Stacked(), "stacked bars on a log axis"},
		{bar(Series{Name: "a", Y: []float64{1, 1}}, Series{Name: "b", Y: []float64{-1, 1}}).Stacked(), "both signs"},
		{bar(Series{Y: []float64{1, 1}}).LogX(), "LogX is for"},

		{HeatMap("h", nil, nil, nil), "no cells"},
		{HeatMap("h", []string{"x"}, []string{"a", "b"}, [][]float64{{1}}), "1 rows of values for 2"},
		{HeatMap("h", []string{"x", "y"}, []string{"a"}, [][]float64{{1}}), "values[0] has 1 values for 2"},
		{HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{nan}}), "values[0][0] is NaN"},
		{HeatMap("h", []string{"x", "x"}, []string{"a"}, [][]float64{{1, 2}}), "two column labels"},
		{HeatMap("h", []string{"x"}, []string{"a", "a"}, [][]float64{{1}, {2}}), "two row labels"},
		{HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(0, 2), "Scale(0, 2) for values from 3 to 3"},
		{HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(3, 3), "Scale(3, 3)"},
		{HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(nan, 3), "Scale(NaN, 3)"},
		{bar(Series{Y: []float64{1, 1}}).Scale(0, 2), "Scale is for HeatMap"},
		{HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{1}}).LogY(), "LogY is for"},

		{Histogram("h", nil, 3), "no values"},
		{Histogram("h", ones(3), 0), "0 bins"},
		{Histogram("h", ones(3), -1), "-1 bins"},
		{Histogram("h", ones(3), maxBins+1), "501 bins"},
		{Histogram("h", []float64{nan}, 3), "values[0] is NaN"},

		{Gantt("g"), "no spans"},
		{Gantt("g", Span{Lane: "a", Kind: "k", Start: 2, End: 1}), `span 0 of lane "a" ends at 1, before`},
		{Gantt("g", Span{Kind: "k", End: 1}), "lacks"},
		{Gantt("g", Span{Lane: "a", End: 1}), "lacks"},
		{Gantt("g", Span{Lane: "a", Kind: "k", Start: nan, End: 1}), "span 0: times[0] is NaN"},
		{Gantt("g", Span{Lane: "a", Kind: "k", Start: 1.7e18, End: 1.7e18 + 1e3}), "differ too little"},

		{Table("t", nil, nil), "no columns"},
		{Table("t", []string{"a", "b"}, [][]string{{"1", "2"}, {"3"}}), "row 1 has 1 cells for 2"},
		{Of(nil), "no chart"},

		{Roofline("r", 1, 1), "no points"},
		{Roofline("r", 0, 1, at), "peak by bandwidth[0] is 0"},
		{Roofline("r", 1, nan, at), "peak by bandwidth[1] is NaN"},
		{Roofline("r", 1e30, 1e-10, at), "outside 1e-15"},
		{Roofline("r", 1, 1, at, Point{"b", inf, 1}), `point 1, "b": X, Y[0]`},
		{Roofline("r", 1, 1, Point{"b", 1, -1}), "log axis"},
		{Roofline("r", 1, 1, Point{"b", 1e-16, 1}), "outside 1e-15"},
		{Roofline("r", 1, 1, at).LogX(), "LogX is for"},
		{Roofline("r", 1, 1, make([]Point, maxMarks+1)...), "point 0"},

		{ranged.Range(0, 1.5), "Range(0, 1.5) for x from 1 to 2"},
		{ranged.Range(1.5, 3), "Range(1.5, 3)"},
		{ranged.Range(3, 0), "Range(3, 0)"},
		{ranged.Range(nan, 3), "NaN"},
		{ranged.Range(0, inf), "Inf"},
		{ranged.LogX().Range(0, 3), "log axis"},
		{line(Series{Y: []float64{1}}).Range(0, 0), "Range(0, 0)"},
		{Gantt("g", Span{"l", "", "k", 0, 3}).Range(0, 2), "Range(0, 2) for x from 0 to 3"},
		{bar(Series{Y: []float64{1, 1}}).Range(0, 2), "Range is for"},
		{Roofline("r", 1, 1, at).Range(0, 2), "Range is for"},
	} {
		_, svg := test.chart.SVG()
		_, html := test.chart.HTML()
		for from, err := range map[string]error{"Err": test.chart.Err(), "SVG": svg, "HTML": html,
			"Text": errors.New(test.chart.Text())} {
			must.Refuse(t, from, err, test.want)
		}
	}
}

func TestChartsDoNotChange(t *testing.T) {
	y := []float64{1, 2}
	c := Line("loss", "step", "nats", Series{Name: "a", Y: y})
	before, err := c.SVG()
	must.Do(t, err)
	y[0] = nan
	c.LogY().Size(300, 300).Axes("other", "names").Stacked()
	after, err := c.SVG()
	if err != nil || after != before {
		t.Errorf("the chart changed with its author's slice or with a copy: %v", err)
	}
}

func TestHistogramCounts(t *testing.T) {
	for _, test := range []struct {
		values []float64
		bins   int
		want   string
	}{
		{[]float64{0, 1, 2, 3, 4}, 4, "[{0 1 1} {1 2 1} {2 3 1} {3 4 2}]"},
		{[]float64{-1, 1}, 2, "[{-1 0 1} {0 1 1}]"},
		{[]float64{0, 0.1, 0.9, 1}, 1, "[{0 1 4}]"},
		{[]float64{5, 5, 5}, 10, "[{2.5 7.5 3}]"},
		{[]float64{0, 0}, 2, "[{-0.5 0.5 2}]"},
	} {
		if got := fmt.Sprint((&histogram{test.values, test.bins}).count()); got != test.want {
			t.Errorf("%v in %d bins: %s, want %s", test.values, test.bins, got, test.want)
		}
	}
	// Whatever the values, each is counted once and lies within its bin's borders.
	values := make([]float64, 1000)
	for i := range values {
		values[i] = math.Sin(float64(i)) / 3
	}
	for bins := 1; bins <= 60; bins++ {
		list := (&histogram{values, bins}).count()
		for i, b := range list {
			want := 0
			for _, v := range values {
				if v >= b.low && (v < b.high || i == len(list)-1) {
					want++
				}
			}
			if b.count != want {
				t.Errorf("%d bins: bin %d counts %d, want %d", bins, i, b.count, want)
			}
		}
	}
}

func TestTracksKeepSpansApart(t *testing.T) {
	var spans []Span
	for i := range 200 {
		start := float64(i * 7919 % 100)
		spans = append(spans, Span{Lane: fmt.Sprint(i % 3), Kind: "k", Start: start, End: start + float64(i%13)})
	}
	k := Gantt("g", spans...).kind.(*gantt)
	track, count := k.tracks()
	for i, a := range spans {
		if track[i] < 0 || track[i] >= count[a.Lane] {
			t.Fatalf("span %d is on track %d of %d", i, track[i], count[a.Lane])
		}
		for j, b := range spans[:i] {
			if a.Lane == b.Lane && track[i] == track[j] && a.Start < b.End && b.Start < a.End {
				t.Errorf("spans %v and %v share a track", a, b)
			}
		}
	}
}

func TestTextShortens(t *testing.T) {
	rows := make([][]string, 100)
	for i := range rows {
		rows[i] = []string{fmt.Sprint(i), strings.Repeat("long ", 40)}
	}
	text := Table("t", []string{"n", "s"}, rows).Text()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 1+1+textRows || !strings.Contains(text, "… 100 rows in all") {
		t.Errorf("a table of 100 rows takes %d lines:\n%s", len(lines), text)
	}
	if !strings.HasPrefix(lines[len(lines)-1], "99") {
		t.Errorf("the last line is not the last row: %q", lines[len(lines)-1])
	}
	want := "0 … 12: K kind\nl  " + strings.Repeat("K", 15) + strings.Repeat("·", 45) + "\n"
	if text := Gantt("short", Span{"l", "", "kind", 0, 3}).Range(0, 12).Text(); !strings.Contains(text, want) {
		t.Errorf("the text is\n%s, without\n%s", text, want)
	}
	if text := Line("bad\x1b[31m\ntitle", "x", "y", Series{Y: []float64{1}}).Text(); strings.Contains(text, "\x1b") {
		t.Errorf("a control character reaches the terminal: %q", text)
	}
}

func TestInitialsDiffer(t *testing.T) {
	got := string(initials([]string{"forward", "forget", "F", "fo", "对", "!"}))
	if got != "FO01对2" {
		t.Errorf("initials are %q", got)
	}
}

// Names that are shown cover no point and no other name; a point far from all others has one.
func TestBesidePoints(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	same := func(p Point) (x, y float64) { return p.X, p.Y }
	for range 200 {
		points := []Point{{"far", -1000, -1000}}
		for range random.IntN(30) {
			points = append(points, Point{strings.Repeat("n", random.IntN(12)), 300 * random.Float64(),
				200 * random.Float64()})
		}
		positions := besidePoints(points, same)
		if len(positions) != len(points) || positions[0] == "" {
			t.Fatalf("positions %q", positions)
		}
		var names []box
		for i, p := range points {
			w := min(echarts.TextWidth(p.Name, 11), 140)
			b := box{p.X - w/2, p.Y - 7, p.X + w/2, p.Y + 7} // around the point, then moved
			dx, dy := 0.0, 0.0
			switch positions[i] {
			case "":
				continue
			case "right":
				dx = w/2 + 10
			case "left":
				dx = -w/2 - 10
			case "bottom":
				dy = 17
			case "top":
				dy = -17
			default:
				t.Fatalf("position %q", positions[i])
			}
			names = append(names, box{b.left + dx, b.top + dy, b.right + dx, b.bottom + dy})
		}
		for i, a := range names {
			for _, b := range names[:i] {
				const rounding = 1e-9
				if a.left+rounding < b.right && b.left+rounding < a.right &&
					a.top+rounding < b.bottom && b.top+rounding < a.bottom {
					t.Fatalf("names %v and %v meet", a, b)
				}
			}
			for _, p := range points {
				if a.left < p.X && p.X < a.right && a.top < p.Y && p.Y < a.bottom {
					t.Fatalf("a name %v covers %v", a, p)
				}
			}
		}
	}
}
