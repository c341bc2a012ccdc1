package chart

import (
	"fmt"
	"math"
	"strconv"
)

// palette is that of Okabe and Ito (2008), which readers with any common form of colour blindness can tell apart. Its
// yellow is left out, as it is hard to see on white, and its black is softened.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d"}

// ramp is viridis: even steps of lightness, so that a heat map reads in grey too.
var ramp = []string{"#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"}

// Shapes and dashes tell series apart without colour.
var (
	symbols = []string{"circle", "triangle", "rect", "diamond", "emptyCircle", "emptyTriangle", "emptyRect"}
	dashes  = []string{"solid", "dashed", "dotted"}
)

const (
	background = "#ffffff" // not transparent: a dark theme would swallow the text
	ink        = "#333333"
	font       = "Arial, Helvetica, sans-serif"
	margin     = 12
	legendGap  = 10
	legendRow  = 14 + legendGap
)

func colour(i int) string { return palette[i%len(palette)] }

func (c *Chart) size() (width, height int) {
	if c.width != 0 {
		return c.width, c.height
	}
	width, height = 640, 380
	switch k := c.kind.(type) {
	case *gantt:
		_, count := k.tracks()
		tracks := 1
		for _, n := range count {
			tracks = max(tracks, n)
		}
		width, height = 860, min(130+len(k.lanes)*max(32, 20*tracks), 1200)
	case *heatMap:
		row := 26
		if !k.stated() {
			row = 14
		}
		height = min(max(130+len(k.ys)*row, 260), 900)
	}
	// A legend of many rows takes its room below, not from the picture.
	return width, height + int(legendRow*max(0, legendRows(c.names(), float64(width-2*margin))-2))
}

// heading starts a chart's options: title, legend, and a grid that leaves them the rows they need. ECharts places the
// three without regard to each other, so a long legend would run into the picture.
func heading(c *Chart) object {
	width, _ := c.size()
	names := c.names()
	inner := float64(width - 2*margin)
	top := 10.0
	o := base()
	if title := printable(c.title); title != "" {
		lines := math.Max(1, math.Ceil(boldWidth*textWidth(title, 15)/(0.9*inner)))
		o["title"] = object{
			"text": title, "left": margin, "top": top, "padding": 0,
			"textStyle": object{"fontSize": 15, "lineHeight": 20, "width": inner, "overflow": "break", "color": ink},
		}
		top += 20*lines + 8
	}
	if len(names) > 0 {
		legend := object{
			"left": margin, "top": top, "width": inner, "padding": 0, "itemGap": legendGap, "itemWidth": 18, "itemHeight": 10,
			"data":      names,
			"textStyle": object{"fontSize": 12, "color": ink, "width": inner / 2, "overflow": "truncate"},
		}
		if _, ok := c.kind.(*gantt); ok {
			legend["icon"] = "roundRect"
		}
		o["legend"] = legend
		top += legendRow * legendRows(names, inner)
	}
	if c.y != "" {
		top += 26
	} else {
		top += 12
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
		w := 18 + 5 + min(textWidth(name, 12), width/2) + legendGap
		if x > 0 && x+w > width {
			rows, x = rows+1, 0
		}
		x += w
	}
	return rows
}

// base is what every chart has in common.
func base() object {
	return object{
		"backgroundColor": background,
		"color":           palette,
		"textStyle":       object{"fontFamily": font},
		// The live chart's tip stays inside the chart, since a notebook clips what leaves its output.
		"tooltip": object{"trigger": "item", "confine": true},
	}
}

func numberAxis(name string, log, vertical bool) object {
	o := axis(name, vertical)
	o["type"], o["scale"] = "value", true
	if log {
		o["type"] = "log"
		o["minorSplitLine"] = object{"show": true, "lineStyle": object{"color": "#f4f4f4"}}
	}
	o["splitLine"] = object{"show": true, "lineStyle": object{"color": "#e4e4e4"}}
	return o
}

// categoryAxis is a horizontal axis of labels, which are turned where width pixels do not hold them side by side.
func categoryAxis(name string, labels []string, width int) object {
	o := axis(name, false)
	o["type"], o["data"] = "category", labels
	o["axisTick"] = object{"alignWithLabel": true}
	slot := float64(width) / float64(len(labels))
	const widest = 110
	longest := 0.0
	for _, l := range labels {
		longest = max(longest, min(textWidth(l, 12), widest))
	}
	label := object{"fontSize": 12, "color": ink, "width": widest, "overflow": "truncate"}
	if longest+8 > slot {
		label["rotate"] = 40
		o["nameGap"] = 22 + longest*math.Sin(40*math.Pi/180)
	}
	if slot >= 16 {
		label["interval"] = 0
	}
	o["axisLabel"] = label
	return o
}

// rowAxis is a vertical axis of labels that reads from the top, as a table does.
func rowAxis(name string, labels []string) object {
	o := axis(name, true)
	o["type"], o["data"], o["inverse"] = "category", labels, true
	o["nameLocation"] = "start"
	o["axisTick"] = object{"show": false}
	o["splitLine"] = object{"show": false}
	o["axisLabel"] = object{"fontSize": 12, "color": ink, "width": 160, "overflow": "truncate"}
	if len(labels) <= 40 {
		o["axisLabel"].(object)["interval"] = 0
	}
	return o
}

func axis(name string, vertical bool) object {
	o := object{
		"name": name, "nameLocation": "middle", "nameGap": 30,
		"nameTextStyle": object{"fontSize": 12, "color": ink},
		"axisLabel":     object{"fontSize": 12, "color": ink, "hideOverlap": true},
		"axisLine":      object{"show": true, "onZero": false, "lineStyle": object{"color": "#888888"}},
	}
	if vertical {
		// Upright above the axis: turned beside it, the name would meet labels of unknown width.
		o["nameLocation"], o["nameGap"] = "end", 10
		o["nameTextStyle"].(object)["align"] = "left"
	}
	return o
}

// rampColour is the colour that ECharts gives v on the ramp from low to high.
func rampColour(v, low, high float64) string {
	t := 0.0
	if high > low {
		t = (v/2 - low/2) / (high/2 - low/2)
	}
	at := t * float64(len(ramp)-1)
	i := min(int(at), len(ramp)-2)
	r0, g0, b0 := rgb(ramp[i])
	r1, g1, b1 := rgb(ramp[i+1])
	mix := func(a, b float64) int { return int(a + (b-a)*(at-float64(i))) }
	return fmt.Sprintf("#%02x%02x%02x", mix(r0, r1), mix(g0, g1), mix(b0, b1))
}

// readable is black or white, whichever stands out more on the colour.
func readable(colour string) string {
	r, g, b := rgb(colour)
	if 0.299*r+0.587*g+0.114*b > 145 {
		return "#000000"
	}
	return "#ffffff"
}

func rgb(hex string) (r, g, b float64) {
	n, _ := strconv.ParseUint(hex[1:], 16, 32)
	return float64(n >> 16), float64(n >> 8 & 255), float64(n & 255)
}

// decimals is how many digits after the point tell values between low and high apart.
func decimals(low, high float64) int {
	return int(min(max(2-math.Floor(math.Log10(high-low)), 0), 12))
}
