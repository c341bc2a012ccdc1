package chart

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// SVG draws the chart as an SVG document, the same bytes for the same chart. The first call of a process takes longer,
// as it loads ECharts. The document refers to nothing outside itself, and its element ids depend on the chart alone, so
// that several documents may be put in one page.
//
// It returns [Chart.Err]'s error, ECharts' own, or one saying that the chart is a table or needs the network.
func (c *Chart) SVG() (string, error) {
	p, err := c.draw()
	return p.svg, err
}

// picture is a chart as drawn.
type picture struct {
	svg, options  string // options is JSON, safe inside a script element
	mark          string // tells different pictures apart
	width, height int
}

// Only a quote inside a tag is written as it is, so this never matches a text.
var reference = regexp.MustCompile(`href="\s*(?:[a-zA-Z]+:)?//[^"]*"`)

func (c *Chart) draw() (picture, error) {
	if err := c.Err(); err != nil {
		return picture{}, err
	}
	options := c.kind.options(c)
	if options == nil {
		return picture{}, fmt.Errorf("chart %q: a table has no picture", c.title)
	}
	// Marshal escapes <, > and &, so that nothing in it can end a script element.
	data, err := json.Marshal(options)
	if err != nil {
		return picture{}, fmt.Errorf("chart %q: %w", c.title, err)
	}
	// ECharts keeps what it measures in plain objects under the text itself, so this one text would become the
	// prototype of every object on the page. A space of no width makes it a text like any other.
	p := picture{options: strings.ReplaceAll(string(data), "__proto__", "__proto\u200b__")}
	p.width, p.height = c.size()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", p.width, p.height, data))
	p.mark = hex.EncodeToString(sum[:8])
	svg, err := process.render(p.options, p.width, p.height, "z"+p.mark)
	if err != nil {
		return picture{}, fmt.Errorf("chart %q: %w", c.title, err)
	}
	p.svg = printable(svg)
	if link := reference.FindString(p.svg); link != "" {
		return picture{}, fmt.Errorf("chart %q: needs the network for %s", c.title, link)
	}
	return p, nil
}
