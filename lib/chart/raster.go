package chart

import (
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"strconv"
	"strings"

	"golang.org/x/image/vector"
)

// element is one of an SVG document.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// number is an attribute's number, or the one that stands for a missing one.
func (e element) number(name string, missing float64) float64 {
	if v, err := strconv.ParseFloat(e.attr(name), 64); err == nil {
		return v
	}
	return missing
}

// canvas is a picture under work.
type canvas struct {
	image *image.RGBA
	clips map[string]element // paths, by id
	ramps map[string]ramped  // linear gradients, by id
}

// raster draws an SVG document that ECharts has written, scale pixels for each of its own. It knows what the charts of
// this package consist of, and refuses all else: what it draws is what a browser would.
func raster(svg string, scale float64) (*image.RGBA, error) {
	var root element
	if err := xml.Unmarshal([]byte(svg), &root); err != nil {
		return nil, err
	}
	size := image.Rect(0, 0, int(scale*root.number("width", 0)), int(scale*root.number("height", 0)))
	if size.Empty() {
		return nil, fmt.Errorf("a picture of size %v", size)
	}
	c := &canvas{image.NewRGBA(size), map[string]element{}, map[string]ramped{}}
	for _, defs := range root.Children {
		for _, d := range defs.Children {
			switch {
			case defs.XMLName.Local != "defs":
			case d.XMLName.Local == "clipPath" && len(d.Children) == 1:
				c.clips[d.attr("id")] = d.Children[0]
			case d.XMLName.Local == "linearGradient":
				r, err := newRamped(d)
				if err != nil {
					return nil, err
				}
				c.ramps[d.attr("id")] = r
			default:
				return nil, fmt.Errorf("a definition of <%s>", d.XMLName.Local)
			}
		}
	}
	return c.image, c.group(root, matrix{scale, 0, 0, scale, 0, 0}, size)
}

// group draws an element's children.
func (c *canvas) group(g element, m matrix, clip image.Rectangle) error {
	for _, e := range g.Children {
		var err error
		switch e.XMLName.Local {
		case "g":
			inside := clip
			if inside, err = c.clip(e, m, clip); err == nil {
				err = c.group(e, m, inside)
			}
		case "path", "rect", "polygon", "polyline", "text":
			err = c.shape(e, m, clip)
		case "defs", "style":
		default:
			err = fmt.Errorf("an element <%s>", e.XMLName.Local)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clip is what of a picture a group may draw on: the box around its clipping path. ECharts clips by rectangles, some of
// them with rounded corners, which stay square here.
func (c *canvas) clip(g element, m matrix, clip image.Rectangle) (image.Rectangle, error) {
	id := urlOf(g.attr("clip-path"))
	if id == "" {
		return clip, nil
	}
	path, ok := c.clips[id]
	if !ok {
		return clip, fmt.Errorf("a clip %q", id)
	}
	lines, m, err := outline(path, m)
	return bounds(m.apply(lines)).Intersect(clip), err
}

// shape fills and strokes one element.
func (c *canvas) shape(e element, m matrix, clip image.Rectangle) error {
	lines, m, err := outline(e, m)
	if err != nil {
		return err
	}
	stroke := func() error {
		width := e.number("stroke-width", 1) * m.growth()
		if e.attr("stroke") == "" || e.attr("stroke") == "none" || width == 0 {
			return nil
		}
		paint, err := c.paint(e, "stroke", lines, m)
		if err != nil {
			return err
		}
		dashes, err := numbers(e.attr("stroke-dasharray"))
		if err != nil {
			return err
		}
		for i := range dashes {
			dashes[i] *= m.growth()
		}
		c.fill(widened(m.apply(lines), width, dashes, e.attr("stroke-linecap") == "round"), paint, clip)
		return nil
	}
	first := e.attr("paint-order") == "stroke"
	if first {
		if err := stroke(); err != nil {
			return err
		}
	}
	if e.attr("fill") != "none" {
		paint, err := c.paint(e, "fill", lines, m)
		if err != nil {
			return err
		}
		c.fill(m.apply(lines), paint, clip)
	}
	if first {
		return nil
	}
	return stroke()
}

// paint is what an attribute says to fill with.
func (c *canvas) paint(e element, attr string, lines []polyline, m matrix) (image.Image, error) {
	text := e.attr(attr)
	if id := urlOf(text); id != "" {
		r, ok := c.ramps[id]
		if !ok {
			return nil, fmt.Errorf("paint %q", text)
		}
		return r.on(lines, m), nil
	}
	paint, err := parseColour(text)
	opaque := e.number(attr+"-opacity", 1)
	paint.A = uint8(math.Round(opaque * float64(paint.A)))
	return image.NewUniform(paint), err
}

// fill fills closed lines, given in pixels.
func (c *canvas) fill(lines []polyline, paint image.Image, clip image.Rectangle) {
	box := bounds(lines).Intersect(clip)
	if box.Empty() {
		return
	}
	z := vector.NewRasterizer(box.Dx(), box.Dy())
	for _, line := range lines {
		for i, p := range line.points {
			x, y := float32(p.x-float64(box.Min.X)), float32(p.y-float64(box.Min.Y))
			if i == 0 {
				z.MoveTo(x, y)
			} else {
				z.LineTo(x, y)
			}
		}
		z.ClosePath()
	}
	z.DrawOp = draw.Over
	z.Draw(c.image, box, paint, box.Min)
}

// bounds are the pixels that lines touch.
func bounds(lines []polyline) image.Rectangle {
	low, high := point{math.Inf(1), math.Inf(1)}, point{math.Inf(-1), math.Inf(-1)}
	for _, line := range lines {
		for _, p := range line.points {
			low, high = point{min(low.x, p.x), min(low.y, p.y)}, point{max(high.x, p.x), max(high.y, p.y)}
		}
	}
	if low.x > high.x {
		return image.Rectangle{}
	}
	const far = 1 << 20 // beyond any picture
	at := func(v float64) int { return int(min(max(v, -far), far)) }
	return image.Rect(at(math.Floor(low.x)), at(math.Floor(low.y)), at(math.Ceil(high.x)), at(math.Ceil(high.y)))
}

// urlOf is the id in "url(#id)".
func urlOf(text string) string {
	id, found := strings.CutPrefix(text, "url(#")
	if !found {
		return ""
	}
	return strings.TrimSuffix(id, ")")
}

// parseColour reads #rgb, #rrggbb and rgb(r,g,b). No colour at all is black, as in SVG.
func parseColour(text string) (c color.NRGBA, err error) {
	c.A = 255
	hex, isHex := strings.CutPrefix(text, "#")
	inner, isRGB := strings.CutPrefix(text, "rgb(")
	switch {
	case text == "" || text == "black":
	case isHex && len(hex) == 3:
		return parseColour("#" + strings.Repeat(hex[:1], 2) + strings.Repeat(hex[1:2], 2) + strings.Repeat(hex[2:], 2))
	case isHex && len(hex) == 6:
		var v uint64
		v, err = strconv.ParseUint(hex, 16, 32)
		c.R, c.G, c.B = uint8(v>>16), uint8(v>>8), uint8(v)
	case isRGB:
		var v []float64
		if v, err = numbers(strings.TrimSuffix(inner, ")")); err == nil && len(v) == 3 {
			c.R, c.G, c.B = uint8(v[0]), uint8(v[1]), uint8(v[2])
			break
		}
		fallthrough
	default:
		err = fmt.Errorf("a colour %q", text)
	}
	return c, err
}
