package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Series is one named line, cloud of points or set of bars.
type Series struct {
	// Name is what the legend says. A chart with several series needs a different name for each.
	Name string
	// X are the horizontal positions, as many as Y. Nil means 0, 1, 2, ... A bar chart takes its positions from its
	// categories, so there X must be nil.
	X []float64
	// Y are the values, in the unit that the chart's axis name states.
	Y []float64
}

const (
	// maxMarks bounds what is drawn one by one: points, bars, cells and spans. Each takes about a millisecond, and 140
	// bytes of the saved notebook.
	maxMarks = 5000
	// maxPoints bounds what is drawn together: the points of lines, and the cells of tables.
	maxPoints = 50_000
	// maxMagnitude leaves room for the differences and nice limits that are computed from the values.
	maxMagnitude = 1e300
	minMagnitude = 1e-300
)

func cloneSeries(series []Series) []Series {
	out := make([]Series, len(series))
	for i, s := range series {
		out[i] = Series{Name: s.Name, X: slices.Clone(s.X), Y: slices.Clone(s.Y)}
	}
	return out
}

// checkNames refuses equal names because ECharts would treat such series as one: one colour, one legend entry.
func checkNames(series []Series) error {
	if len(series) == 0 {
		return errors.New("no series")
	}
	seen := map[string]bool{}
	for i, s := range series {
		if s.Name == "" && len(series) > 1 {
			return fmt.Errorf("series %d has no name", i)
		}
		if seen[s.Name] {
			return fmt.Errorf("two series are named %q", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

func checkCount(what string, n, limit int) error {
	if n > limit {
		return fmt.Errorf("%d %s are more than the %d that such a chart holds", n, what, limit)
	}
	return nil
}

// checkNumbers refuses what has no place on an axis; what names the numbers in the error.
func checkNumbers(what string, values []float64, log bool) error {
	for i, v := range values {
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			return fmt.Errorf("%s[%d] is %v, which has no place on an axis", what, i, v)
		case math.Abs(v) > maxMagnitude:
			return fmt.Errorf("%s[%d] is %v, too large to draw", what, i, v)
		case v != 0 && math.Abs(v) < minMagnitude:
			return fmt.Errorf("%s[%d] is %v, too small to draw", what, i, v)
		case log && v <= 0:
			return fmt.Errorf("%s[%d] is %v, which has no place on a log axis", what, i, v)
		}
	}
	return nil
}

// nearlyEqual tells whether numbers from low to high differ by little more than rounding does. An axis over such a
// stretch has no room for its marks.
func nearlyEqual(low, high float64) bool {
	return high-low <= 1e-9*max(math.Abs(low), math.Abs(high))
}
