package chart

import (
	"maps"
	"math"
	"slices"

	"github.com/shardbook/shardbook/internal/echarts"
)

// size is the size that the caller set, else the default of the kind.
func (c *Chart) size() (width, height int) {
	if c.width != 0 {
		return c.width, c.height
	}
	width, height = 640, 380
	switch k := c.kind.(type) {
	case *gantt:
		_, count := k.tracks()
		tracks := slices.Max(slices.Collect(maps.Values(count)))
		width, height = 860, min(130+len(k.lanes)*max(32, 20*tracks), 1200)
	case *heatMap:
		row := 26
		if !k.stated() {
			row = 14
		}
		height = min(max(130+len(k.ys)*row, 260), 900)
	}
	// A legend of many rows makes the chart higher, not the picture smaller.
	return width, height + int(legendRow*max(0, legendRows(c.names(), float64(width-2*margin))-2))
}

// heading starts a chart's options: title, legend, and a grid that leaves room for both. ECharts itself would let a
// long legend overlap the picture.
func heading(c *Chart) object {
	width, _ := c.size()
	names := c.names()
	inner := float64(width - 2*margin)
	top := 10.0
	o := base()
	if title := printable(c.title); title != "" {
		lines := math.Max(1, math.Ceil(echarts.BoldWidth*echarts.TextWidth(title, 15)/(0.9*inner)))
		o["title"] = object{
			"text": title, "left": margin, "top": top, "padding": 0,
			"textStyle": object{"fontSize": 15, "lineHeight": 20, "width": inner, "overflow": "break", "color": ink},
		}
		top += 20*lines + 8
	}
	if len(names) > 0 {
		legend := object{
			"left": margin, "top": top, "width": inner, "padding": 0, "itemGap": legendGap, "itemWidth": 18,
			"itemHeight": 10,
			"data":       names,
			"textStyle":  object{"fontSize": 12, "color": ink, "width": inner / 2, "overflow": "truncate"},
		}
		if _, ok := c.kind.(*gantt); ok {
			legend["icon"] = "roundRect"
		}
		o["legend"] = legend
		top += legendRow * legendRows(names, inner)
	}
	top += 12
	if c.y != "" {
		top += 14
	}
	bottom := margin
	if c.x != "" {
		bottom += 20
	}
	o["grid"] = object{"left": margin + 6, "right": 28, "top": top, "bottom": bottom, "containLabel": true}
	return o
}

// names are what the legend lists: a single series without a name needs none.
func (c *Chart) names() []string {
	var names []string
	switch k := c.kind.(type) {
	case *points2D:
		names = seriesNames(k.series)
	case *barKind:
		names = seriesNames(k.series)
	case *gantt:
		names = k.kinds
	case *roofline:
		names = append([]string{"roof"}, sides...)
	}
	if len(names) == 1 && names[0] == "" {
		return nil
	}
	return names
}

func seriesNames(series []Series) []string {
	names := make([]string, len(series))
	for i, s := range series {
		names[i] = s.Name
	}
	return names
}

func legendRows(names []string, width float64) float64 {
	rows, x := 1.0, 0.0
	for _, name := range names {
		w := 18 + 5 + min(echarts.TextWidth(name, 12), width/2) + legendGap
		if x > 0 && x+w > width {
			rows, x = rows+1, 0
		}
		x += w
	}
	return rows
}
