package chart

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// alt returns the alternative text: the title, the kind, the axes, and where each series begins and ends.
func (c *Chart) alt() string {
	var gist string
	switch k := c.kind.(type) {
	case *points2D:
		low, high := extent(k.series, Series.x)
		kind := "Points"
		if k.joined {
			kind = "Lines"
		}
		gist = fmt.Sprintf("%s: %s over %s, from %s to %s; ", kind, cmp.Or(c.y, "y"), cmp.Or(c.x, "x"), number(low),
			number(high)) +
			some(k.series, func(s Series) string { return fromTo(s.Name, s.Y[0], s.Y[len(s.Y)-1]) })
	case *barKind:
		gist = fmt.Sprintf("Bars%s for %s; ", of(c.y), some(k.categories, plain)) +
			some(k.series, func(s Series) string { return fromTo(s.Name, slices.Min(s.Y), slices.Max(s.Y)) })
	case *heatMap:
		low, high := k.span()
		gist = fmt.Sprintf("Heat map of %d rows%s and %d columns%s; values from %s to %s",
			len(k.ys), of(c.y), len(k.xs), of(c.x), number(low), number(high))
	case *gantt:
		low, high := k.extent()
		gist = fmt.Sprintf("Bars over %s, from %s to %s, in the rows %s; colours: %s", c.x, number(low), number(high),
			some(k.lanes, plain), some(k.kinds, plain))
	case *histogram:
		gist = fmt.Sprintf("Histogram of %d values%s, from %s to %s", len(k.values), of(c.x),
			number(slices.Min(k.values)), number(slices.Max(k.values)))
	case *roofline:
		gist = fmt.Sprintf("Roofline with its ridge at %s FLOP/byte; ", number(k.ridge())) +
			some(k.points, func(p Point) string { return fmt.Sprintf("%s at %s FLOP/s", p.Name, number(p.Y)) })
	case *wrapped:
		gist = "A chart with " + some(k.given["series"].([]any), func(s any) string {
			series, _ := s.(object)
			name, _ := series["name"].(string)
			return strings.TrimSpace(fmt.Sprintf("%v series %s", series["type"], name))
		})
	}
	return strings.TrimPrefix(plain(c.title+". "+gist+"."), ". ")
}

func of(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

func fromTo(name string, a, b float64) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s to %s", name, number(a), number(b)))
}

// some formats the first elements of a list and counts the others.
func some[T any](list []T, tell func(T) string) string {
	const most = 6
	var told []string
	for _, e := range list[:min(len(list), most)] {
		told = append(told, tell(e))
	}
	text := strings.Join(told, ", ")
	if n := len(list) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
