package chart

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

func TestErrors(t *testing.T) {
	line := func(s ...Series) *Chart { return Line("loss", "step", "nats", s...) }
	bar := func(s ...Series) *Chart { return Bar("time", []string{"dp", "tp"}, s...) }
	ones := func(n int) []float64 { return make([]float64, n) }
	for _, test := range []struct {
		name  string
		chart *Chart
		want  string
	}{
		{"nil chart", nil, "no chart"},
		{"zero chart", &Chart{}, "no chart"},
		{"no series", line(), `chart "loss": no series`},
		{"no points", line(Series{Name: "a"}), `"a" has no points`},
		{"X and Y differ", line(Series{Name: "a", X: []float64{1, 2}, Y: []float64{1}}), "2 X and 1 Y"},
		{"empty X", line(Series{Name: "a", X: []float64{}, Y: []float64{1}}), "0 X and 1 Y"},
		{"NaN", line(Series{Name: "a", Y: []float64{1, nan}}), `"a": Y[1] is NaN`},
		{"infinite", line(Series{Name: "a", X: []float64{-inf}, Y: []float64{1}}), `"a": X[0] is -Inf`},
		{"huge", line(Series{Y: []float64{1e301}}), "too large"},
		{"tiny", line(Series{Y: []float64{1e-310}}), "too small"},
		{"equal names", line(Series{Name: "a", Y: ones(1)}, Series{Name: "a", Y: ones(1)}), `two series are named "a"`},
		{"nameless", line(Series{Name: "a", Y: ones(1)}, Series{Y: ones(1)}), "series 1 has no name"},
		{"too many points", line(Series{Y: ones(maxPoints + 1)}), "50001 points"},
		{"too many marks", Scatter("s", "x", "y", Series{Y: ones(maxMarks + 1)}), "5001 points"},
		{"log of zero", line(Series{Name: "a", X: []float64{1}, Y: []float64{0}}).LogY(), "log axis"},
		{"log of negative", Scatter("s", "x", "y", Series{X: []float64{-1}, Y: []float64{1}}).LogX(), "log axis"},
		{"log of index", line(Series{Y: []float64{1}}).LogX(), "has no X"},
		{"small size", line(Series{Y: ones(1)}).Size(20, 300), "size 20 x 300"},
		{"no size", line(Series{Y: ones(1)}).Size(0, 0), "size 0 x 0"},
		{"negative size", line(Series{Y: ones(1)}).Size(-640, 300), "size"},
		{"stacked line", line(Series{Y: ones(1)}).Stacked(), "Stacked is for Bar"},

		{"no categories", Bar("time", nil, Series{Name: "a"}), "no categories"},
		{"equal categories", Bar("time", []string{"a", "a"}, Series{Y: ones(2)}), `two category labels are "a"`},
		{"no bars", bar(), "no series"},
		{"missing bar", bar(Series{Name: "a", Y: ones(1)}), "1 Y for 2 categories"},
		{"bars with X", bar(Series{Name: "a", X: ones(2), Y: ones(2)}), "has X"},
		{"NaN bar", bar(Series{Name: "a", Y: []float64{nan, 1}}), "NaN"},
		{"log bar of zero", bar(Series{Y: []float64{0, 1}}).LogY(), "log axis"},
		{"log stack", bar(Series{Y: []float64{1, 1}}).LogY().Stacked(), "stacked bars on a log axis"},
		{"mixed stack", bar(Series{Name: "a", Y: []float64{1, 1}}, Series{Name: "b", Y: []float64{-1, 1}}).Stacked(),
			"both signs"},
		{"log x of bars", bar(Series{Y: []float64{1, 1}}).LogX(), "LogX is for"},

		{"no cells", HeatMap("h", nil, nil, nil), "no cells"},
		{"missing row", HeatMap("h", []string{"x"}, []string{"a", "b"}, [][]float64{{1}}), "1 rows of values for 2"},
		{"missing cell", HeatMap("h", []string{"x", "y"}, []string{"a"}, [][]float64{{1}}),
			"values[0] has 1 values for 2"},
		{"NaN cell", HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{nan}}), "values[0][0] is NaN"},
		{"equal columns", HeatMap("h", []string{"x", "x"}, []string{"a"}, [][]float64{{1, 2}}), "two column labels"},
		{"equal rows", HeatMap("h", []string{"x"}, []string{"a", "a"}, [][]float64{{1}, {2}}), "two row labels"},
		{"value off the scale", HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(0, 2),
			"Scale(0, 2) for values from 3 to 3"},
		{"scale without length", HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(3, 3),
			"Scale(3, 3)"},
		{"NaN scale", HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{3}}).Scale(nan, 3), "Scale(NaN, 3)"},
		{"scale of bars", bar(Series{Y: []float64{1, 1}}).Scale(0, 2), "Scale is for HeatMap"},
		{"log heat map", HeatMap("h", []string{"x"}, []string{"a"}, [][]float64{{1}}).LogY(), "LogY is for"},

		{"no values", Histogram("h", nil, 3), "no values"},
		{"zero bins", Histogram("h", ones(3), 0), "0 bins"},
		{"negative bins", Histogram("h", ones(3), -1), "-1 bins"},
		{"too many bins", Histogram("h", ones(3), maxBins+1), "501 bins"},
		{"NaN value", Histogram("h", []float64{nan}, 3), "values[0] is NaN"},

		{"no spans", Gantt("g"), "no spans"},
		{"ends before start", Gantt("g", Span{Lane: "a", Kind: "k", Start: 2, End: 1}),
			`span 0 of lane "a" ends at 1, before`},
		{"no lane", Gantt("g", Span{Kind: "k", End: 1}), "lacks"},
		{"no kind", Gantt("g", Span{Lane: "a", End: 1}), "lacks"},
		{"NaN time", Gantt("g", Span{Lane: "a", Kind: "k", Start: nan, End: 1}), "span 0: times[0] is NaN"},
		{"late times", Gantt("g", Span{Lane: "a", Kind: "k", Start: 1.7e18, End: 1.7e18 + 1e3}), "differ too little"},

		{"no columns", Table("t", nil, nil), "no columns"},
		{"short row", Table("t", []string{"a", "b"}, [][]string{{"1", "2"}, {"3"}}), "row 1 has 1 cells for 2"},
		{"of nothing", Of(nil), "no chart"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, svg := test.chart.SVG()
			_, html := test.chart.HTML()
			for from, err := range map[string]error{"Err": test.chart.Err(), "SVG": svg, "HTML": html} {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: error %v does not say %q", from, err, test.want)
				}
			}
			if text := test.chart.Text(); !strings.Contains(text, test.want) {
				t.Errorf("Text %q does not say %q", text, test.want)
			}
		})
	}
}

func TestChartsDoNotChange(t *testing.T) {
	y := []float64{1, 2}
	c := Line("loss", "step", "nats", Series{Name: "a", Y: y})
	before, err := c.SVG()
	if err != nil {
		t.Fatal(err)
	}
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
