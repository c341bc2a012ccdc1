package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Series is one named line, cloud of points or set of bars.
type Series struct {
	// Name is shown in the legend. The series of a chart need different names.
	Name string
	// X are the horizontal positions, as many as Y. Nil means 0, 1, 2, ... A bar chart takes its positions from its
	// categories, so there X must be nil.
	X []float64
	// Y are the values, in the unit that the chart's axis name states.
	Y []float64
}

const (
	// maxMarks limits marks that are drawn one by one: points, bars, cells and spans. Each takes about 1 ms, and 140
	// bytes of the saved notebook.
	maxMarks = 5000
	// maxPoints limits the points of lines and the cells of tables.
	maxPoints = 50_000
	// maxMagnitude is below the largest float64, because axis limits are computed from differences of values.
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
	names := seriesNames(series)
	if i := slices.Index(names, ""); i >= 0 && len(series) > 1 {
		return fmt.Errorf("series %d has no name", i)
	}
	return checkDistinct("two series are named %q", names)
}

// checkDistinct refuses equal names: two series, rows or bars of one name cannot be told apart.
func checkDistinct(format string, names []string) error {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if seen[name] {
			return fmt.Errorf(format, name)
		}
		seen[name] = true
	}
	return nil
}

func checkCount(what string, n, limit int) error {
	if n > limit {
		return fmt.Errorf("%d %s are more than the %d that such a chart holds", n, what, limit)
	}
	return nil
}

// checkNumbers returns an error for numbers that cannot be drawn on an axis; what names the numbers in the error.
func checkNumbers(what string, values []float64, log bool) error {
	for i, v := range values {
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			return fmt.Errorf("%s[%d] is %v, which cannot be drawn on an axis", what, i, v)
		case math.Abs(v) > maxMagnitude:
			return fmt.Errorf("%s[%d] is %v, too large to draw", what, i, v)
		case v != 0 && math.Abs(v) < minMagnitude:
			return fmt.Errorf("%s[%d] is %v, too small to draw", what, i, v)
		case log && v <= 0:
			return fmt.Errorf("%s[%d] is %v, which cannot be drawn on a log axis: give numbers above zero", what, i, v)
		}
	}
	return nil
}

// nearlyEqual reports whether low and high differ by little more than rounding: such an axis has no room for ticks.
func nearlyEqual(low, high float64) bool { return high-low <= 1e-9*max(math.Abs(low), math.Abs(high)) }
