package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Point is an operation in a [Roofline] chart.
type Point struct {
	Name string
	X, Y float64
}

type roofline struct {
	peak, bandwidth float64
	points          []Point
}

// Roofline draws the speed of operations below the limit of a machine. The horizontal axis is arithmetic intensity
// (FLOP/byte), the vertical one speed (FLOP/s), both logarithmic. The roof is min(peak, intensity × bandwidth), with
// peak in FLOP/s and bandwidth in bytes/s.
//
// It is an error if there are no points, or if a number is not from 1e-15 to 1e30.
//
// Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
// architectures", CACM 52(4), 2009.
func Roofline(title string, peak, bandwidth float64, points ...Point) *Chart {
	return &Chart{title: title, x: "intensity (FLOP/byte)", y: "FLOP/s",
		kind: &roofline{peak, bandwidth, slices.Clone(points)}}
}

func (k *roofline) ridge() float64 { return k.peak / k.bandwidth }

func (k *roofline) check(*Chart) error {
	if len(k.points) == 0 {
		return errors.New("no points")
	}
	if err := checkRoofline("peak, bandwidth, peak by bandwidth", k.peak, k.bandwidth, k.ridge()); err != nil {
		return err
	}
	for i, p := range k.points {
		if err := checkRoofline("X, Y", p.X, p.Y); err != nil {
			return fmt.Errorf("point %d, %q: %w", i, p.Name, err)
		}
	}
	return checkCount("points", len(k.points), maxMarks)
}

// checkRoofline also rejects numbers beyond any machine, where ECharts has no labels for a log axis.
func checkRoofline(what string, values ...float64) error {
	if err := checkNumbers(what, values, true); err != nil {
		return err
	}
	if low, high := slices.Min(values), slices.Max(values); low < 1e-15 || high > 1e30 {
		return fmt.Errorf("%s: %v is outside 1e-15 to 1e30", what, values)
	}
	return nil
}

// The two sides of the ridge: what limits the operations there.
var sides = []string{"bound by memory", "bound by compute"}

func (k *roofline) side(p Point) int {
	if p.X < k.ridge() {
		return 0
	}
	return 1
}

func (k *roofline) options(c *Chart) object {
	x, y := []float64{k.ridge()}, []float64{k.peak}
	for _, p := range k.points {
		x, y = append(x, p.X), append(y, p.Y)
	}
	left, right := decades(x)
	low, high := decades(y)
	width, height := c.size()
	places := besidePoints(k.points, func(p Point) (x, y float64) {
		const across, down = 90, 140 // around the picture, about
		return float64(width-across) * math.Log(p.X/left) / math.Log(right/left),
			float64(height-down) * math.Log(high/p.Y) / math.Log(high/low)
	})
	data := [2][]object{}
	for i, p := range k.points {
		data[k.side(p)] = append(data[k.side(p)], object{"name": p.Name, "value": []float64{p.X, p.Y},
			"label": object{"show": places[i] != "", "position": places[i]}})
	}
	roof := func(x float64) []float64 { return []float64{x, min(k.peak, k.bandwidth*x)} }
	series := []object{{
		"type": "line", "name": "roof", "data": [][]float64{roof(left), roof(k.ridge()), roof(right)},
		"symbol": "none", "lineStyle": object{"width": 2, "color": ink}, "itemStyle": object{"color": ink},
		"z": 1, // under the points' names
	}}
	for i, name := range sides {
		series = append(series, object{
			"type": "scatter", "name": name, "data": data[i], "symbol": symbols[i], "symbolSize": 9,
			"itemStyle": object{"color": colour(i)},
			"label": object{"formatter": "{b}", "fontSize": labelSize, "color": ink, "width": labelWidth,
				"overflow": "truncate", "textBorderColor": background, "textBorderWidth": 2},
		})
	}
	h := heading(c)
	h["xAxis"], h["yAxis"] = numberAxis(c.x, true, false), numberAxis(c.y, true, true)
	h["xAxis"].(object)["min"], h["xAxis"].(object)["max"] = left, right
	h["yAxis"].(object)["min"], h["yAxis"].(object)["max"] = low, high
	h["series"] = series
	return h
}

// decades are the powers of ten around numbers, with some room.
func decades(values []float64) (low, high float64) {
	return math.Pow10(int(math.Floor(math.Log10(slices.Min(values) / 1.5)))),
		math.Pow10(int(math.Ceil(math.Log10(slices.Max(values) * 1.5))))
}

func (k *roofline) text(c *Chart) string {
	rows := make([][]string, len(k.points))
	for i, p := range k.points {
		roof := min(k.peak, k.bandwidth*p.X)
		rows[i] = []string{p.Name, number(p.X), number(p.Y), number(roof), sides[k.side(p)]}
	}
	return textTable([]string{"", c.x, c.y, "roof", ""}, rows)
}
