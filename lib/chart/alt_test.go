package chart

import (
	"testing"

	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"
)

func TestAlt(t *testing.T) {
	y := []float64{1, 3, 2}
	pie := charts.NewPie()
	pie.SetGlobalOptions(charts.WithTitleOpts(opts.Title{Title: "Shares"}))
	pie.AddSeries("ranks", []opts.PieData{{Name: "a", Value: 1}})
	for _, test := range []struct {
		chart *Chart
		want  string
	}{
		{Line("Loss", "step", "nats", Series{Name: "a", Y: y}, Series{Name: "b", Y: y}),
			"Loss. Lines: nats over step, from 0 to 2; a 1 to 2, b 1 to 2."},
		{Scatter("", "x", "", Series{Y: y}), "Points: y over x, from 0 to 2; 1 to 2."},
		{Bar("B", []string{"p", "q", "r"}, Series{Name: "s", Y: y}).Axes("", "MB"),
			"B. Bars of MB for p, q, r; s 1 to 3."},
		{HeatMap("H", []string{"p", "q", "r"}, []string{"z"}, [][]float64{y}).Axes("to", "from"),
			"H. Heat map of 1 rows of from and 3 columns of to; values from 1 to 3."},
		{Gantt("G", Span{"rank 0", "", "forward", 0, 2}).Axes("ms", ""),
			"G. Bars over ms, from 0 to 2, in the rows rank 0; colours: forward."},
		{Histogram("", y, 2).Axes("size", ""), "Histogram of 3 values of size, from 1 to 3."},
		{Roofline("R", 1e12, 1e11, Point{"add", 1, 5}), "R. Roofline with its ridge at 10 FLOP/byte; add at 5 FLOP/s."},
		{Bar("B", []string{"1", "2", "3", "4", "5", "6", "7", "8"}, Series{Y: make([]float64, 8)}),
			"B. Bars for 1, 2, 3, 4, 5, 6 and 2 more; 0 to 0."},
		{Of(pie), "Shares. A chart with pie series ranks."},
	} {
		if got := test.chart.alt(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
