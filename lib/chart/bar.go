package chart

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

type barKind struct {
	categories []string
	series     []Series
}

// Bar draws one bar for every category and series: side by side, or on top of each other after [Chart.Stacked]. Name
// the axes, with units, by [Chart.Axes].
//
// It is an error if there are no categories or series, if a series has an X or not one Y for each category, if two
// categories or series share a name, or if a value is NaN or infinite. Stacked values must not differ in sign, and
// those on a log axis must be above zero.
func Bar(title string, categories []string, series ...Series) *Chart {
	return &Chart{title: title, kind: &barKind{slices.Clone(categories), cloneSeries(series)}}
}

func (k *barKind) check(c *Chart) error {
	if len(k.categories) == 0 {
		return errors.New("no categories")
	}
	if err := checkDistinct("two category labels are %q", k.categories); err != nil {
		return err
	}
	if err := checkNames(k.series); err != nil {
		return err
	}
	var up, down bool
	for _, s := range k.series {
		if s.X != nil {
			return fmt.Errorf("series %q has X, but a bar chart takes its positions from its categories", s.Name)
		}
		if len(s.Y) != len(k.categories) {
			return fmt.Errorf("series %q has %d Y for %d categories", s.Name, len(s.Y), len(k.categories))
		}
		if err := checkNumbers(fmt.Sprintf("series %q: Y", s.Name), s.Y, c.logY); err != nil {
			return err
		}
		up, down = up || slices.Max(s.Y) > 0, down || slices.Min(s.Y) < 0
	}
	if c.stacked && up && down {
		return errors.New("stacked bars of both signs do not show their sum")
	}
	return checkCount("bars", len(k.categories)*len(k.series), maxMarks)
}

func (k *barKind) options(c *Chart) object {
	series := make([]object, len(k.series))
	for i, s := range k.series {
		series[i] = object{
			"type": "bar", "name": s.Name, "data": s.Y, "barMaxWidth": 60,
			"itemStyle": object{"color": colour(i)},
		}
		if c.stacked {
			series[i]["stack"] = "all"
		}
	}
	width, _ := c.size()
	h := heading(c)
	h["xAxis"] = categoryAxis(c.x, k.categories, width-90)
	h["yAxis"] = numberAxis(c.y, c.logY, true)
	if !c.logY {
		// A bar's length is its value, so its axis starts at zero.
		h["yAxis"].(object)["scale"] = false
	}
	h["series"] = series
	h["tooltip"].(object)["trigger"] = "axis"
	h["tooltip"].(object)["axisPointer"] = object{"type": "shadow"}
	return h
}

func (k *barKind) text(c *Chart) string {
	header := []string{c.x}
	for _, s := range k.series {
		header = append(header, cmp.Or(s.Name, c.y))
	}
	rows := make([][]string, len(k.categories))
	for i, name := range k.categories {
		rows[i] = []string{name}
		for _, s := range k.series {
			rows[i] = append(rows[i], number(s.Y[i]))
		}
	}
	return textTable(header, rows)
}
