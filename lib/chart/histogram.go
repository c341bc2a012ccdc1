package chart

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

type histogram struct {
	values []float64
	bins   int
}

// maxBins keeps every bar at least about a pixel wide.
const maxBins = 500

// Histogram counts the values in bins of equal width between the smallest and the largest; a value on the border
// between two bins counts in the upper one, and the largest value in the last. Name the values, with their unit, by
// [Chart.Axes].
//
// It is an error if there are no values, if bins is not within 1 to 500, or if a value is NaN or infinite.
func Histogram(title string, values []float64, bins int) *Chart {
	return &Chart{title: title, y: "count", kind: &histogram{slices.Clone(values), bins}}
}

func (k *histogram) check(*Chart) error {
	if len(k.values) == 0 {
		return errors.New("no values")
	}
	if k.bins < 1 || k.bins > maxBins {
		return fmt.Errorf("%d bins are not within 1 to %d", k.bins, maxBins)
	}
	return checkNumbers("values", k.values, false)
}

// bin is the half-open interval [low, high), and how many values lie in it.
type bin struct {
	low, high float64
	count     int
}

func (k *histogram) count() []bin {
	low, high := slices.Min(k.values), slices.Max(k.values)
	bins := make([]bin, k.bins)
	if nearlyEqual(low, high) {
		// If all values are equal, one bin around them gets a width in proportion to their size.
		half := max(math.Abs(low)/2, 0.5)
		return []bin{{low - half, high + half, len(k.values)}}
	}
	edge := func(i int) float64 {
		t := float64(i) / float64(k.bins)
		return low*(1-t) + high*t
	}
	for i := range bins {
		bins[i].low, bins[i].high = edge(i), edge(i+1)
	}
	for _, v := range k.values {
		// The edges decide, not a division, so that a bin counts exactly what its borders say.
		i, onEdge := slices.BinarySearchFunc(bins, v, func(b bin, v float64) int { return cmp.Compare(b.low, v) })
		if !onEdge {
			i--
		}
		bins[min(max(i, 0), k.bins-1)].count++
	}
	return bins
}

// The bars touch, which a category axis cannot show, so each is drawn between its own borders.
const binShape = `__f__function(params, api) {
	var a = api.coord([api.value(0), api.value(2)]), b = api.coord([api.value(1), 0]);
	return {type: "rect", style: {fill: api.visual("color")},
		shape: {x: a[0], y: a[1], width: Math.max(b[0] - a[0] - 1, 1), height: b[1] - a[1]}};
}__f__`

func (k *histogram) options(c *Chart) object {
	bins := k.count()
	data := make([][3]float64, len(bins))
	for i, b := range bins {
		data[i] = [3]float64{b.low, b.high, float64(b.count)}
	}
	h := heading(c)
	h["xAxis"] = numberAxis(c.x, false, false)
	h["yAxis"] = numberAxis(c.y, false, true)
	h["yAxis"].(object)["scale"] = false
	h["yAxis"].(object)["minInterval"] = 1
	h["series"] = []object{{
		"type": "custom", "renderItem": binShape, "data": data, "clip": true,
		"dimensions": []string{"from", "to", "count"},
		"encode":     object{"x": []int{0, 1}, "y": 2, "tooltip": []int{0, 1, 2}},
		"itemStyle":  object{"color": colour(0)},
	}}
	return h
}

func (k *histogram) text(c *Chart) string {
	bins := k.count()
	top := slices.MaxFunc(bins, func(a, b bin) int { return a.count - b.count }).count
	rows := make([][]string, len(bins))
	for i, b := range bins {
		bar := strings.Repeat("█", b.count*20/top)
		if b.count > 0 && bar == "" {
			bar = "▏"
		}
		rows[i] = []string{number(b.low) + " … " + number(b.high), number(float64(b.count)), bar}
	}
	return textTable([]string{c.x, c.y, ""}, rows)
}
