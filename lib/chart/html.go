package chart

import (
	_ "embed"
	"encoding/base64"
	"fmt"

	"github.com/shardbook/shardbook/internal/echarts"
)

//go:embed page.js
var pageJS string

// HTML returns the chart as an HTML fragment, the same bytes for the same chart. It has an inline SVG image with an
// alternative text, which is shown wherever HTML is, and a small script that makes the chart interactive where scripts
// may run and ECharts is on the page (see [Loader]). It loads nothing from the network. A table is a table element.
//
// It returns [Chart.Err]'s error, or one if ECharts cannot draw the chart or it needs the network.
func (c *Chart) HTML() (string, error) { return c.fragment(true, false) }

// fragment implements HTML. With bitmap it uses a PNG image where possible; script adds the script.
func (c *Chart) fragment(script, bitmap bool) (string, error) {
	if err := c.Err(); err != nil {
		return "", err
	}
	if t, ok := c.kind.(*table); ok {
		return t.html(c.title), nil
	}
	r, err := c.request()
	if err != nil {
		return "", err
	}
	r.PNG = bitmap
	p, err := c.drawn(r)
	if err != nil {
		return "", err
	}
	kind := "svg+xml"
	if p.PNG {
		kind = "png"
	}
	// An image, because notebooks that are not trusted strip inline SVG; in a span, so that several charts stand side
	// by side even where the style is stripped.
	s := fmt.Sprintf(`<span data-shardbook-chart="%s" style="display:inline-block;vertical-align:top;margin:4px">`+
		`<img alt="%s" width="%d" height="%d" src="data:image/%s;base64,%s"></span>`,
		r.Mark, escape(c.alt()), r.Width, r.Height, kind, base64.StdEncoding.EncodeToString(p.Data))
	if script {
		s += fmt.Sprintf("<script>(function(){\n%s%slive(%q,%d,%d,%s);\n})()</script>",
			echarts.Revive, pageJS, r.Mark, r.Width, r.Height, r.Options)
	}
	return s, nil
}
