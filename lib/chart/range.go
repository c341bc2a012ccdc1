package chart

import (
	"errors"
	"fmt"
)

// Range sets the two ends of the horizontal axis of a [Line], [Scatter] or [Gantt] chart, so that several can be
// compared by eye. Every x must lie within. Without it the axis ends near the chart's own least and greatest x.
func (c *Chart) Range(low, high float64) *Chart {
	return c.with(func(d *Chart) { d.xs = &[2]float64{low, high} })
}

func (c *Chart) checkRange() error {
	if c.xs == nil {
		return nil
	}
	var low, high float64
	switch k := c.kind.(type) {
	case *points2D:
		low, high = extent(k.series, Series.x)
	case *gantt:
		low, high = k.extent()
	default:
		return errors.New("Range is for Line, Scatter and Gantt")
	}
	if err := checkNumbers("Range", c.xs[:], c.logX); err != nil {
		return err
	}
	if from, to := c.xs[0], c.xs[1]; !(from < to) || nearlyEqual(from, to) || low < from || high > to {
		return fmt.Errorf("Range(%v, %v) for x from %v to %v", from, to, low, high)
	}
	return nil
}

// ranged returns the horizontal axis with the ends that Range set.
func (c *Chart) ranged(axis object) object {
	if c.xs != nil {
		axis["min"], axis["max"] = c.xs[0], c.xs[1]
	}
	return axis
}
