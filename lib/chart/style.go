package chart

import (
	"fmt"
	"math"
	"strconv"
)

// palette has the colours of Okabe and Ito (2008), which readers with any common form of colour blindness can tell
// apart, without yellow, which is hard to see on white, and with a softer black.
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

// base has the options of all charts.
func base() object {
	return object{
		"backgroundColor": background,
		"color":           palette,
		"textStyle":       object{"fontFamily": font},
		// The live chart's tip stays inside the chart, since a notebook clips what leaves its output.
		"tooltip": object{"trigger": "item", "confine": true},
	}
}

// rampColour is the colour of v in a heat map from low to high.
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

// readable is black or white, whichever has more contrast with the colour.
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

// decimals is the number of decimal places that distinguish values between low and high.
func decimals(low, high float64) int { return int(min(max(2-math.Floor(math.Log10(high-low)), 0), 12)) }
