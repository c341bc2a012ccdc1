package chart

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"strconv"
	"strings"
)

// ramped is a linear gradient from one point to another, in shares of the sides of what it fills.
type ramped struct {
	from, to point
	at       []float64 // shares of the way, in order
	colours  []color.NRGBA
	inverse  matrix // takes pixels back to these shares
}

func newRamped(e element) (r ramped, err error) {
	r.from = point{e.number("x1", 0), e.number("y1", 0)}
	r.to = point{e.number("x2", 0), e.number("y2", 0)}
	if e.attr("gradientUnits") != "objectBoundingBox" || r.from == r.to {
		return r, fmt.Errorf("a gradient in units of %q", e.attr("gradientUnits"))
	}
	for _, stop := range e.Children {
		share, err := strconv.ParseFloat(strings.TrimSuffix(stop.attr("offset"), "%"), 64)
		if err != nil {
			return r, fmt.Errorf("a gradient's stop %q", stop.attr("offset"))
		}
		c, err := parseColour(stop.attr("stop-color"))
		if err != nil {
			return r, err
		}
		r.at, r.colours = append(r.at, share/100), append(r.colours, c)
	}
	if len(r.at) == 0 {
		return r, errors.New("a gradient without stops")
	}
	return r, nil
}

// on is the gradient on what it fills, whose units m takes to pixels.
func (r ramped) on(lines []polyline, m matrix) ramped {
	box := bounds(lines)
	m = m.times(matrix{float64(box.Dx()), 0, 0, float64(box.Dy()), float64(box.Min.X), float64(box.Min.Y)})
	det := m.a*m.d - m.b*m.c
	r.inverse = matrix{m.d / det, -m.b / det, -m.c / det, m.a / det, (m.c*m.f - m.d*m.e) / det, (m.b*m.e - m.a*m.f) / det}
	return r
}

func (r ramped) ColorModel() color.Model { return color.NRGBAModel }
func (r ramped) Bounds() image.Rectangle { return image.Rect(-1e9, -1e9, 1e9, 1e9) }

// At is the colour of the last stop before a pixel: ECharts writes one for each per cent.
func (r ramped) At(x, y int) color.Color {
	p, way := r.inverse.at(point{float64(x) + 0.5, float64(y) + 0.5}).plus(r.from, -1), r.to.plus(r.from, -1)
	share := (p.x*way.x + p.y*way.y) / (way.x*way.x + way.y*way.y)
	c := r.colours[0]
	for i, at := range r.at {
		if at <= share {
			c = r.colours[i]
		}
	}
	return c
}
