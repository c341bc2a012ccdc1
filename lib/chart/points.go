package chart

import (
	"cmp"
	"fmt"
	"math"
)

// points2D is a chart of points in the plane: joined by lines, or not.
type points2D struct {
	joined bool
	series []Series
}

// Line draws each series as a line through its points, in the order given. x and y name the axes, with their units.
//
// It is an error if there is no series or no point, if X and Y differ in length, if two series share a name, or if a
// value is NaN, infinite or, on a log axis, not above zero.
func Line(title, x, y string, series ...Series) *Chart {
	return &Chart{title: title, x: x, y: y, kind: &points2D{joined: true, series: cloneSeries(series)}}
}

// Scatter draws each series as a cloud of points. Axis names and errors are as for [Line].
func Scatter(title, x, y string, series ...Series) *Chart {
	return &Chart{title: title, x: x, y: y, kind: &points2D{series: cloneSeries(series)}}
}

func (p *points2D) check(c *Chart) error {
	if err := checkNames(p.series); err != nil {
		return err
	}
	count := 0
	for _, s := range p.series {
		count += len(s.Y)
		if len(s.Y) == 0 {
			return fmt.Errorf("series %q has no points", s.Name)
		}
		if s.X != nil && len(s.X) != len(s.Y) {
			return fmt.Errorf("series %q has %d X and %d Y", s.Name, len(s.X), len(s.Y))
		}
		if s.X == nil && c.logX {
			return fmt.Errorf("series %q has no X, which would start at 0, and a log axis has no 0: set X", s.Name)
		}
		if err := checkNumbers(fmt.Sprintf("series %q: X", s.Name), s.X, c.logX); err != nil {
			return err
		}
		if err := checkNumbers(fmt.Sprintf("series %q: Y", s.Name), s.Y, c.logY); err != nil {
			return err
		}
	}
	if p.joined {
		return checkCount("points", count, maxPoints)
	}
	return checkCount("points", count, maxMarks)
}

func (p *points2D) options(c *Chart) object {
	series := make([]object, len(p.series))
	for i, s := range p.series {
		series[i] = p.one(c, i, s)
	}
	h := heading(c)
	h["xAxis"] = c.ranged(widen(numberAxis(c.x, c.logX, false), p.series, Series.x))
	h["yAxis"] = widen(numberAxis(c.y, c.logY, true), p.series, func(s Series, i int) float64 { return s.Y[i] })
	h["series"] = series
	if p.joined {
		h["tooltip"].(object)["trigger"] = "axis"
	}
	return h
}

func (p *points2D) one(c *Chart, i int, s Series) object {
	data := make([][2]float64, len(s.Y))
	for j := range s.Y {
		data[j] = [2]float64{s.x(j), s.Y[j]}
	}
	o := object{
		"name": s.Name, "data": data, "symbol": symbols[i%len(symbols)],
		"itemStyle": object{"color": colour(i)},
	}
	if !p.joined {
		o["type"], o["symbolSize"] = "scatter", 7
		o["itemStyle"].(object)["opacity"] = 0.75
		return o
	}
	o["type"], o["symbolSize"] = "line", 6
	o["lineStyle"] = object{"width": 2, "type": dashes[i/len(palette)%len(dashes)], "color": colour(i)}
	// Marks separate the points of a short line and hide a long one.
	o["showSymbol"] = len(s.Y) <= 40
	if len(s.Y) > 2000 && !c.logX && !c.logY {
		o["sampling"] = "lttb"
	}
	return o
}

func extent(series []Series, at func(Series, int) float64) (low, high float64) {
	low, high = at(series[0], 0), at(series[0], 0)
	for _, s := range series {
		for i := range s.Y {
			low, high = min(low, at(s, i)), max(high, at(s, i))
		}
	}
	return low, high
}

// widen extends an axis whose values are equal but for rounding, so that they show as a horizontal line.
func widen(axis object, series []Series, at func(Series, int) float64) object {
	low, high := extent(series, at)
	if low == high || !nearlyEqual(low, high) {
		return axis
	}
	if axis["type"] == "log" {
		axis["min"], axis["max"] = low/10, high*10
		return axis
	}
	room := max(math.Abs(low), math.Abs(high)) / 10
	axis["min"], axis["max"] = low-room, high+room
	return axis
}

func (s Series) x(i int) float64 {
	if s.X == nil {
		return float64(i)
	}
	return s.X[i]
}

func (p *points2D) text(c *Chart) string {
	if p.joined {
		return p.sparklines(c)
	}
	var rows [][]string
	for _, s := range p.series {
		for i, y := range s.Y {
			rows = append(rows, []string{s.Name, number(s.x(i)), number(y)})
		}
	}
	return textTable([]string{"", c.x, c.y}, rows)
}

func (p *points2D) sparklines(c *Chart) string {
	low, high := extent(p.series, Series.x)
	rows := make([][]string, len(p.series))
	for i, s := range p.series {
		first, last := s.Y[0], s.Y[len(s.Y)-1]
		rows[i] = []string{s.Name, sparkline(s.Y, c.logY), number(first) + " → " + number(last)}
	}
	return fmt.Sprintf("%s over %s, %s … %s\n", plain(cmp.Or(c.y, "y")), plain(cmp.Or(c.x, "x")), number(low),
		number(high)) + textTable(nil, rows)
}
