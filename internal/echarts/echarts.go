// Package echarts has Apache ECharts, and what it is asked to draw as plain data. It imports no interpreter of
// JavaScript, so that a program may let another process draw.
package echarts

import _ "embed"

// Source is Apache ECharts, minified, as its authors publish it.
//
//go:embed echarts.min.js
var Source string

// Revive is the JavaScript function revive, which makes functions of the options that stand for functions.
//
//go:embed revive.js
var Revive string

// Request is a picture to draw.
type Request struct {
	Options       string // JSON
	Mark          string // tells different pictures apart: the ids of an SVG document start with it
	Width, Height int    // in pixels
	PNG           bool   // draw a PNG image if possible; else an SVG document
}

// Picture is a drawn request.
type Picture struct {
	Data []byte
	PNG  bool // else it is an SVG document
}
