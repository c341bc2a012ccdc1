package chart

import (
	"math"
	"strings"
	"testing"

	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"
	"github.com/shardbook/shardbook/internal/must"
)

func pie(title string, label opts.Label) *charts.Pie {
	p := charts.NewPie()
	p.SetGlobalOptions(charts.WithTitleOpts(opts.Title{Title: title}))
	p.AddSeries("memory", []opts.PieData{{Name: "weights", Value: 3}, {Name: "optimizer", Value: 6}}).
		SetSeriesOptions(charts.WithLabelOpts(label))
	return p
}

func TestOf(t *testing.T) {
	formatter := opts.FuncOpts("function (p) { return p.name + ' = ' + p.value; }")
	c := Of(pie("shares", opts.Label{Formatter: string(formatter)}))
	svg := must.Get(c.SVG())(t)
	for _, want := range []string{"shares", "weights = 3", "optimizer = 6"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
	checkFragment(t, c)
	if want := "shares\nseries  kind  items\nmemory  pie       2\n"; c.Text() != want {
		t.Errorf("Text is %q, want %q", c.Text(), want)
	}
}

type broken struct{}

func (broken) Validate()            { panic("broken") }
func (broken) JSON() map[string]any { return nil }

func TestOfRefuses(t *testing.T) {
	var none *charts.Pie
	picture := charts.NewScatter()
	picture.AddSeries("s", []opts.ScatterData{{Value: 1, Symbol: "image://https://example.com/a.png"}})
	china := charts.NewMap()
	china.RegisterMapType("china")
	china.AddSeries("s", []opts.MapData{{Name: "a", Value: 1}})
	three := charts.NewBar3D()
	three.AddSeries("s", []opts.Chart3DData{{Value: []any{1, 2, 3}}})
	notANumber := charts.NewLine()
	notANumber.AddSeries("s", []opts.LineData{{Value: math.NaN()}})
	for name, test := range map[string]struct {
		chart goEChart
		want  string
	}{
		"nil pointer": {none, "go-echarts:"},
		"panic":       {broken{}, "broken"},
		"no series":   {charts.NewLine(), "no series"},
		"function as title": {pie(string(opts.FuncOpts("1")), opts.Label{}),
			"options.title.text: a JavaScript function"},
		"live chart":   {pie("p", opts.Label{Formatter: string(opts.FuncOpts("%MY_ECHARTS%.x"))}), "live chart"},
		"bad function": {pie("p", opts.Label{Formatter: string(opts.FuncOpts("function ("))}), "ECharts:"},
		"network":      {picture, "needs the network"},
		"map":          {china, "maps need"},
		"3D":           {three, "3D"},
		"NaN":          {notANumber, "NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Of(test.chart).SVG()
			must.Refuse(t, "", err, test.want)
		})
	}
}
