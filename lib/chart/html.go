package chart

import (
	_ "embed"
	"encoding/base64"
	"fmt"
)

//go:embed page.js
var pageJS string

// HTML is the chart as an HTML fragment, the same bytes for the same chart: an SVG image inside the text itself, which
// is shown wherever HTML is, with an alternative text, and a small script that turns the image into a live chart where
// scripts may run and ECharts is on the page (see [Loader]). Nothing in it is fetched. A table is a table element.
//
// It is an error if the chart has one ([Chart.Err]), if ECharts cannot draw it, or if it needs the network.
func (c *Chart) HTML() (string, error) { return c.fragment(true, false) }

// fragment is HTML's, with a PNG image where bitmap says so and it can be one, and without the script where the output
// is about to be replaced.
func (c *Chart) fragment(script, bitmap bool) (string, error) {
	if err := c.Err(); err != nil {
		return "", err
	}
	if t, ok := c.kind.(*table); ok {
		return t.html(c.title), nil
	}
	p, err := c.picture()
	if err != nil {
		return "", err
	}
	kind, data := "png", []byte(nil)
	if bitmap {
		data, err = p.png()
	}
	if !bitmap || err != nil {
		svg, err := p.svg()
		if err != nil {
			return "", err
		}
		kind, data = "svg+xml", []byte(svg)
	}
	// An image, because notebooks that are not trusted strip inline SVG; in a span, so that several charts stand side
	// by side even where the style is stripped.
	s := fmt.Sprintf(`<span data-shardbook-chart="%s" style="display:inline-block;vertical-align:top;margin:4px">`+
		`<img alt="%s" width="%d" height="%d" src="data:image/%s;base64,%s"></span>`,
		p.mark, escape(c.alt()), p.width, p.height, kind, base64.StdEncoding.EncodeToString(data))
	if script {
		s += fmt.Sprintf("<script>(function(){\n%s%slive(%q,%d,%d,%s);\n})()</script>",
			reviveJS, pageJS, p.mark, p.width, p.height, p.options)
	}
	return s, nil
}
