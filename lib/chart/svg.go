package chart

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/shardbook/shardbook/internal/echarts"
)

// SVG draws the chart as an SVG document, the same bytes for the same chart. The document refers to nothing outside
// itself, and its element ids depend on the chart alone, so that several documents may be put in one page.
//
// It returns [Chart.Err]'s error, ECharts' own, or one saying that the chart is a table or needs the network.
func (c *Chart) SVG() (string, error) {
	r, err := c.request()
	if err != nil {
		return "", err
	}
	p, err := c.drawn(r)
	return string(p.Data), err
}

// request is what ECharts has to draw. The options are safe inside a script element.
func (c *Chart) request() (echarts.Request, error) {
	if err := c.Err(); err != nil {
		return echarts.Request{}, err
	}
	options := c.kind.options(c)
	if options == nil {
		return echarts.Request{}, fmt.Errorf("chart %q: a table has no picture", c.title)
	}
	// Marshal escapes <, > and &, so that nothing in it can end a script element.
	data, err := json.Marshal(options)
	if err != nil {
		return echarts.Request{}, fmt.Errorf("chart %q: %w", c.title, err)
	}
	// ECharts caches measured text in plain objects keyed by the text, so "__proto__" would become the prototype of
	// every object on the page. A zero-width space makes it an ordinary key.
	r := echarts.Request{Options: strings.ReplaceAll(string(data), "__proto__", "__proto\u200b__")}
	r.Width, r.Height = c.size()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", r.Width, r.Height, data))
	r.Mark = hex.EncodeToString(sum[:8])
	return r, nil
}

// Quotes in text are escaped, so this matches only inside tags.
var reference = regexp.MustCompile(`href="\s*(?:[a-zA-Z]+:)?//[^"]*"`)

// drawn has a request drawn, and refuses a document that would load something.
func (c *Chart) drawn(r echarts.Request) (echarts.Picture, error) {
	p, err := render(r)
	if err != nil {
		return echarts.Picture{}, fmt.Errorf("chart %q: %w", c.title, err)
	}
	if p.PNG {
		return p, nil
	}
	svg := printable(string(p.Data))
	if link := reference.FindString(svg); link != "" {
		return echarts.Picture{}, fmt.Errorf("chart %q: needs the network for %s", c.title, link)
	}
	return echarts.Picture{Data: []byte(svg)}, nil
}
