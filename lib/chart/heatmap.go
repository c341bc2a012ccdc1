package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shardbook/shardbook/internal/echarts"
)

type heatMap struct {
	xs, ys []string
	values [][]float64 // [len(ys)][len(xs)]
}

// HeatMap draws a matrix of values as coloured cells: values[i][j] is the cell in row ys[i] (the first at the top) and
// column xs[j]. Up to 12 by 12 cells also show their values as numbers; such a map has no colour bar if it is narrower
// than 400 pixels. Name the axes by [Chart.Axes], and say in the title what the values are and their unit.
//
// It is an error if xs or ys is empty or repeats a label, if values does not have one row for each of ys and one value
// for each of xs, or if a value is NaN or infinite.
func HeatMap(title string, xs, ys []string, values [][]float64) *Chart {
	rows := make([][]float64, len(values))
	for i, row := range values {
		rows[i] = slices.Clone(row)
	}
	return &Chart{title: title, kind: &heatMap{slices.Clone(xs), slices.Clone(ys), rows}}
}

func (k *heatMap) check(c *Chart) error {
	if len(k.xs) == 0 || len(k.ys) == 0 {
		return errors.New("no cells")
	}
	if err := checkDistinct("two column labels are %q", k.xs); err != nil {
		return err
	}
	if err := checkDistinct("two row labels are %q", k.ys); err != nil {
		return err
	}
	if len(k.values) != len(k.ys) {
		return fmt.Errorf("%d rows of values for %d row labels", len(k.values), len(k.ys))
	}
	for i, row := range k.values {
		if len(row) != len(k.xs) {
			return fmt.Errorf("values[%d] has %d values for %d column labels", i, len(row), len(k.xs))
		}
		if err := checkNumbers(fmt.Sprintf("values[%d]", i), row, false); err != nil {
			return err
		}
	}
	if c.scale != nil {
		low, high := k.span()
		if from, to := c.scale[0], c.scale[1]; !(from < to) || math.IsInf(to-from, 0) || low < from || to < high {
			return fmt.Errorf("Scale(%v, %v) for values from %v to %v", from, to, low, high)
		}
	}
	return checkCount("cells", len(k.xs)*len(k.ys), maxMarks)
}

// span is the least and the greatest value.
func (k *heatMap) span() (low, high float64) {
	all := slices.Concat(k.values...)
	return slices.Min(all), slices.Max(all)
}

// stated reports whether cells have room for their values.
func (k *heatMap) stated() bool { return len(k.xs) <= 12 && len(k.ys) <= 12 }

func (k *heatMap) options(c *Chart) object {
	low, high := k.span()
	if c.scale != nil {
		low, high = c.scale[0], c.scale[1]
	}
	var data []any
	for i, row := range k.values {
		for j, v := range row {
			cell := object{"value": []any{j, i, v}}
			if k.stated() {
				cell["label"] = object{
					"show": true, "formatter": number(v), "fontSize": 11,
					"color": readable(rampColour(v, low, high)),
				}
			}
			data = append(data, cell)
		}
	}
	border := 0
	if k.stated() {
		border = 1
	}
	width, height := c.size()
	h := heading(c)
	key := 72 // pixels
	if k.stated() && width < 400 {
		key = 0
	}
	h["grid"].(object)["right"] = 28 + key
	names := 0.0
	for _, name := range k.ys {
		names = max(names, min(echarts.TextWidth(name, 12), 160))
	}
	h["xAxis"] = categoryAxis(c.x, k.xs, width-54-key-int(names))
	h["yAxis"] = rowAxis(c.y, k.ys)
	h["series"] = []object{
		{"type": "heatmap", "data": data, "itemStyle": object{"borderColor": background, "borderWidth": border}}}
	if nearlyEqual(low, high) {
		// A single value needs a scale of non-zero width to have a colour.
		high = low + max(math.Abs(low), 1)
	}
	precision := 0
	if slices.ContainsFunc(slices.Concat(k.values...), func(v float64) bool { return v != math.Trunc(v) }) {
		precision = decimals(low, high)
	}
	h["visualMap"] = object{
		"show": key > 0,
		"type": "continuous", "min": low, "max": high, "dimension": 2, "calculable": true, "precision": precision,
		"orient": "vertical", "right": 8, "top": "middle", "itemHeight": min(height/2, 200), "itemWidth": 14,
		"inRange": object{"color": ramp}, "textStyle": object{"fontSize": 11, "color": ink},
	}
	return h
}

func (k *heatMap) text(c *Chart) string {
	header := append([]string{c.y}, k.xs...)
	rows := make([][]string, len(k.ys))
	for i, name := range k.ys {
		rows[i] = []string{name}
		for _, v := range k.values[i] {
			rows[i] = append(rows[i], number(v))
		}
	}
	return textTable(header, rows)
}
