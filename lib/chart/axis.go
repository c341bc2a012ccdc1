package chart

import (
	"math"

	"github.com/shardbook/shardbook/internal/echarts"
)

// shortNumber formats the labels of a log axis: 1e-7 where ECharts writes 0.0000001, without the rounding errors of the
// logarithm. It is a JavaScript function, marked as go-echarts marks one.
const shortNumber = "__f__function (v) { v = +v.toPrecision(12); return v >= 1e5 || v < 1e-3 ? " +
	"v.toExponential().replace('e+', 'e') : String(v); }__f__"

func numberAxis(name string, log, vertical bool) object {
	o := axis(name, vertical)
	o["type"], o["scale"] = "value", true
	if log {
		o["type"] = "log"
		o["axisLabel"].(object)["formatter"] = shortNumber
		o["minorSplitLine"] = object{"show": true, "lineStyle": object{"color": "#f4f4f4"}}
	}
	o["splitLine"] = object{"show": true, "lineStyle": object{"color": "#e4e4e4"}}
	return o
}

// categoryAxis is a horizontal axis of labels. They are rotated if they do not fit side by side into width pixels.
func categoryAxis(name string, labels []string, width int) object {
	o := axis(name, false)
	o["type"], o["data"] = "category", labels
	o["axisTick"] = object{"alignWithLabel": true}
	slot := float64(width) / float64(len(labels))
	const widest = 120
	longest := 0.0
	for _, l := range labels {
		longest = max(longest, min(echarts.TextWidth(l, 12), widest))
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
