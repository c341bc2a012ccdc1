package chart

import (
	"slices"

	"github.com/shardbook/shardbook/internal/echarts"
)

const (
	labelSize   = 11
	labelHeight = 14
	labelWidth  = 140 // at most
)

// box is a rectangle in pixels.
type box struct{ left, top, right, bottom float64 }

func (b box) meets(c box) bool {
	return b.left < c.right && c.left < b.right && b.top < c.bottom && c.top < b.bottom
}

// besidePoints finds for each point a side where its name overlaps no point and no earlier name. It returns ECharts
// label positions, or "" if no side is free. pixel maps a point to the picture.
func besidePoints(points []Point, pixel func(Point) (x, y float64)) (positions []string) {
	const mark, gap = 5, 5 // a mark's radius, and from it to the name
	var taken []box
	for _, p := range points {
		x, y := pixel(p)
		taken = append(taken, box{x - mark, y - mark, x + mark, y + mark})
	}
	for _, p := range points {
		x, y := pixel(p)
		w := min(echarts.TextWidth(p.Name, labelSize), labelWidth)
		position := ""
		for _, at := range []struct {
			position  string
			left, top float64
		}{
			{"right", x + mark + gap, y - labelHeight/2},
			{"left", x - mark - gap - w, y - labelHeight/2},
			{"bottom", x - w/2, y + mark + gap},
			{"top", x - w/2, y - mark - gap - labelHeight},
		} {
			name := box{at.left, at.top, at.left + w, at.top + labelHeight}
			if !slices.ContainsFunc(taken, name.meets) {
				position, taken = at.position, append(taken, name)
				break
			}
		}
		positions = append(positions, position)
	}
	return positions
}
