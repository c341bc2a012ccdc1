// Package chart draws charts for notebooks and terminals with no network.
//
// A chart is made by a constructor named for its kind and shown with [Show]:
//
//	chart.Show(chart.Line("loss", "step", "loss (nats)",
//		chart.Series{Name: "one device", X: steps, Y: loss}))
//
// In a notebook every chart is an image, drawn by Apache ECharts inside this process, so that it is visible wherever
// the notebook is: running, re-opened, trusted or not, or exported. Where scripts may run and ECharts is on the page,
// the image turns into a live chart. In a terminal the same call prints the data as text.
//
// A constructor never fails, so that a notebook cell stays one line: a chart of invalid data holds the error, and
// whatever draws the chart returns it. Data that ECharts would silently draw wrongly (NaN, different lengths, a zero on
// a log axis) are such errors.
package chart

import (
	"cmp"
	"errors"
	"fmt"
)

// Chart is one titled chart. It never changes: the methods that adjust it return a changed copy, and the constructors
// copy the data they are given.
type Chart struct {
	title         string
	x, y          string // axis names, with units
	width, height int    // in pixels; zero means the default
	logX, logY    bool
	stacked       bool
	scale         *[2]float64 // of a heat map's colours; nil means that of its values
	xs            *[2]float64 // the ends of the horizontal axis; nil means those of its values
	kind          kind
}

// kind is what differs between a line chart, a heat map and the rest.
type kind interface {
	// check returns an error if the picture would be wrong or impossible.
	check(c *Chart) error
	// options are ECharts' options. It is called only if check passed.
	options(c *Chart) object
	// text is the plain form, without the title. It is called only if check passed.
	text(c *Chart) string
}

// object is a JSON object. encoding/json writes its keys in order, which keeps the same chart the same bytes.
type object = map[string]any

// Err returns why the chart cannot be drawn, with the series or cell at fault, or nil. [Show] and [Chart.HTML] return
// the same error.
func (c *Chart) Err() error {
	if c == nil || c.kind == nil {
		return errors.New("chart: no chart: use a constructor such as Line or Bar")
	}
	err := c.kind.check(c)
	if err == nil {
		err = c.checkAdjustments()
	}
	if err != nil {
		return fmt.Errorf("chart %q: %w", c.title, err)
	}
	return nil
}

// Axes names the two axes, with their units: c.Axes("batch size", "throughput (tokens/s)"). Charts other than [Line]
// and [Scatter] have no axis names until Axes sets them. An empty name does not change the axis.
func (c *Chart) Axes(x, y string) *Chart {
	return c.with(func(d *Chart) { d.x, d.y = cmp.Or(x, c.x), cmp.Or(y, c.y) })
}

// LogX makes the horizontal axis logarithmic, for [Line] and [Scatter]. Every x must then be above zero.
func (c *Chart) LogX() *Chart { return c.with(func(d *Chart) { d.logX = true }) }

// LogY makes the vertical axis logarithmic, for [Line], [Scatter] and grouped [Bar] charts. Every y must then be above
// zero.
func (c *Chart) LogY() *Chart { return c.with(func(d *Chart) { d.logY = true }) }

// Stacked puts the bars of one category on top of each other instead of side by side. It is for [Bar] only.
func (c *Chart) Stacked() *Chart { return c.with(func(d *Chart) { d.stacked = true }) }

// Scale sets the values at the two ends of a [HeatMap]'s colours, so that several maps can be compared by eye. All
// values must lie within. Without it the ends are the map's own least and greatest value.
func (c *Chart) Scale(low, high float64) *Chart {
	return c.with(func(d *Chart) { d.scale = &[2]float64{low, high} })
}

// Size sets the size of the picture in pixels, each side from 160 to 4000. Without it a chart takes the size that suits
// its kind, and a smaller one where several are shown together.
func (c *Chart) Size(width, height int) *Chart {
	// A zero would read as "no size given", and so pass unnoticed.
	return c.with(func(d *Chart) { d.width, d.height = cmp.Or(width, -1), cmp.Or(height, -1) })
}

func (c *Chart) with(change func(*Chart)) *Chart {
	if c == nil {
		return nil
	}
	d := *c
	change(&d)
	return &d
}

// checkAdjustments returns an error for settings that the kind would ignore: LogX on a chart with a linear axis
// misleads.
func (c *Chart) checkAdjustments() error {
	_, points := c.kind.(*points2D)
	_, bars := c.kind.(*barKind)
	_, cells := c.kind.(*heatMap)
	switch {
	case c.logX && !points:
		return errors.New("LogX is for Line and Scatter")
	case c.logY && !points && !bars:
		return errors.New("LogY is for Line, Scatter and Bar")
	case c.stacked && !bars:
		return errors.New("Stacked is for Bar")
	case c.stacked && c.logY:
		return errors.New("stacked bars on a log axis would not show their sum")
	case c.scale != nil && !cells:
		return errors.New("Scale is for HeatMap")
	}
	for _, side := range []int{c.width, c.height} {
		if side != 0 && (side < 160 || side > 4000) {
			return fmt.Errorf("size %d x %d is outside 160 to 4000 pixels a side", max(c.width, 0), max(c.height, 0))
		}
	}
	return c.checkRange()
}
