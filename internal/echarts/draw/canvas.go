package draw

import (
	_ "embed"
	"fmt"
	"image/color"
	"math"
	"sync"

	"git.sr.ht/~sbinet/gg"
	xfont "golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

//go:embed canvas.js
var canvasJS string

// canvas draws what ECharts draws on an HTML canvas. canvas.js calls its methods.
type canvas struct {
	*gg.Context
	closed bool  // the path has a closed part, whose stroke gg leaves open
	err    error // the first text that cannot be drawn
}

// paint is a colour, or a linear gradient between two points.
type paint struct {
	At     []float64 // x, y of both points; empty for one colour
	Stops  []float64
	Colors [][4]float64 // red, green and blue to 255, alpha to 1
}

func (c *canvas) pattern(p paint) gg.Pattern {
	colour := func(v [4]float64) color.Color {
		return color.NRGBA{uint8(v[0]), uint8(v[1]), uint8(v[2]), uint8(math.Round(255 * v[3]))}
	}
	if len(p.At) == 0 {
		return gg.NewSolidPattern(colour(p.Colors[0]))
	}
	x0, y0 := c.TransformPoint(p.At[0], p.At[1])
	x1, y1 := c.TransformPoint(p.At[2], p.At[3])
	gradient := gg.NewLinearGradient(x0, y0, x1, y1)
	for i, stop := range p.Stops {
		gradient.AddColorStop(stop, colour(p.Colors[i]))
	}
	return gradient
}

// Restore ends what Push began. ECharts clips only between the two, and gg's Pop does not end the clip.
func (c *canvas) Restore() {
	c.Pop()
	c.ResetClip()
}

func (c *canvas) SetTransform(a, b, cc, d, e, f float64) {
	c.Identity()
	c.Transform(a, b, cc, d, e, f)
}

// Transform adds the matrix that maps (x,y) to (ax+cy+e, bx+dy+f), as the translation, rotation, scaling and shear that
// gg has.
func (c *canvas) Transform(a, b, cc, d, e, f float64) {
	c.Translate(e, f)
	if r := math.Hypot(a, b); r > 0 {
		det := a*d - b*cc
		c.Rotate(math.Atan2(b, a))
		c.Scale(r, det/r)
		c.Shear((a*cc+b*d)/(r*r), 0)
	}
}

// growth is the scale of the present matrix: gg scales points by it, but not the widths of lines.
func (c *canvas) growth() float64 {
	x0, y0 := c.TransformPoint(0, 0)
	x1, y1 := c.TransformPoint(1, 0)
	x2, y2 := c.TransformPoint(0, 1)
	return math.Sqrt(math.Abs((x1-x0)*(y2-y0) - (x2-x0)*(y1-y0)))
}

func (c *canvas) Clear() {
	c.ClearPath()
	c.closed = false
}

func (c *canvas) Close() {
	c.ClosePath()
	c.closed = true
}

func (c *canvas) Ellipse(x, y, rx, ry, turned, from, to float64) {
	c.Push()
	c.RotateAbout(turned, x, y)
	c.DrawEllipticalArc(x, y, rx, ry, from, to)
	c.Pop()
}

func (c *canvas) Paint(p paint) {
	c.SetFillStyle(c.pattern(p))
	c.FillPreserve()
}

func (c *canvas) Line(p paint, width float64, end string, dashes []float64, offset float64) {
	grown := c.growth()
	c.SetStrokeStyle(c.pattern(p))
	c.SetLineWidth(width * grown)
	for i := range dashes {
		dashes[i] *= grown
	}
	c.SetDash(dashes...)
	c.SetDashOffset(offset * grown)
	c.SetLineCapButt()
	if end == "round" || c.closed && len(dashes) == 0 {
		c.SetLineCapRound()
	}
	c.StrokePreserve()
}

// fonts are the Go fonts, so that a picture has the same letters on every machine.
var fonts = sync.OnceValues(func() (f [2]*sfnt.Font, err error) {
	for i, data := range [][]byte{goregular.TTF, gobold.TTF} {
		if f[i], err = sfnt.Parse(data); err != nil {
			break
		}
	}
	return f, err
})

// Text sets the path to the outlines of letters. The baseline is "middle", and align as a canvas has it.
func (c *canvas) Text(text string, x, y, size float64, bold bool, align string) {
	if err := c.text(text, x, y, size, bold, align); c.err == nil {
		c.err = err // an exception would cost the loading of ECharts
	}
}

func (c *canvas) text(text string, x, y, size float64, bold bool, align string) error {
	both, err := fonts()
	if err != nil {
		return err
	}
	f := both[0]
	if bold {
		f = both[1]
	}
	const em = 2048 // units, so that nothing is rounded to pixels
	unit := size / (64 * em)
	var buffer sfnt.Buffer
	var letters []sfnt.GlyphIndex
	var advances []float64
	width := 0.0
	for _, r := range text {
		if r == '\u200b' || r == '\n' { // of no width
			continue
		}
		letter, err := f.GlyphIndex(&buffer, r)
		if err == nil && letter == 0 {
			err = fmt.Errorf("the fonts have no %q", r)
		}
		if err != nil {
			return err
		}
		advance, err := f.GlyphAdvance(&buffer, letter, fixed.I(em), xfont.HintingNone)
		if err != nil {
			return err
		}
		letters, advances = append(letters, letter), append(advances, unit*float64(advance))
		width += unit * float64(advance)
	}
	switch align {
	case "center":
		x -= width / 2
	case "right", "end":
		x -= width
	}
	y += 0.35 * size // capital letters are 0.7 high
	for i, letter := range letters {
		segments, err := f.LoadGlyph(&buffer, letter, fixed.I(em), nil)
		if err != nil {
			return err
		}
		for _, s := range segments {
			var p [6]float64
			for i, a := range s.Args {
				p[2*i], p[2*i+1] = x+unit*float64(a.X), y+unit*float64(a.Y)
			}
			switch s.Op {
			case sfnt.SegmentOpMoveTo:
				c.MoveTo(p[0], p[1])
			case sfnt.SegmentOpLineTo:
				c.LineTo(p[0], p[1])
			case sfnt.SegmentOpQuadTo:
				c.QuadraticTo(p[0], p[1], p[2], p[3])
			case sfnt.SegmentOpCubeTo:
				c.CubicTo(p[0], p[1], p[2], p[3], p[4], p[5])
			}
		}
		x += advances[i]
	}
	return nil
}
