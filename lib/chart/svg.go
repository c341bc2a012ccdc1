package chart

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// SVG draws the chart as an SVG document, the same bytes for the same chart. The document refers to nothing outside
// itself, and its element ids depend on the chart alone, so that several documents may be put in one page.
//
// It returns [Chart.Err]'s error, ECharts' own, or one saying that the chart is a table or needs the network.
func (c *Chart) SVG() (string, error) {
	p, err := c.picture()
	if err != nil {
		return "", err
	}
	return p.svg()
}

// picture is the input of ECharts for one chart.
type picture struct {
	title         string
	options       string // JSON, safe inside a script element
	mark          string // tells different pictures apart
	width, height int
}

// Quotes in text are escaped, so this matches only inside tags.
var reference = regexp.MustCompile(`href="\s*(?:[a-zA-Z]+:)?//[^"]*"`)

func (c *Chart) picture() (picture, error) {
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
	// ECharts caches measured text in plain objects keyed by the text, so "__proto__" would become the prototype of
	// every object on the page. A zero-width space makes it an ordinary key.
	p := picture{title: c.title, options: strings.ReplaceAll(string(data), "__proto__", "__proto\u200b__")}
	p.width, p.height = c.size()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", p.width, p.height, data))
	p.mark = hex.EncodeToString(sum[:8])
	return p, nil
}

func (p picture) svg() (string, error) {
	svg, err := process.render(p, nil, 0)
	if err != nil {
		return "", fmt.Errorf("chart %q: %w", p.title, err)
	}
	svg = printable(svg)
	if link := reference.FindString(svg); link != "" {
		return "", fmt.Errorf("chart %q: needs the network for %s", p.title, link)
	}
	return svg, nil
}
