package chart

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	xfont "golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// fonts are the Go fonts, so that a picture has the same letters on every machine.
var fonts = sync.OnceValues(func() (f [2]*sfnt.Font, err error) {
	regular, err := sfnt.Parse(goregular.TTF)
	if err != nil {
		return f, err
	}
	bold, err := sfnt.Parse(gobold.TTF)
	return [2]*sfnt.Font{regular, bold}, err
})

var fontSize = regexp.MustCompile(`font-size:([\d.]+)px`)

// textLines are the outlines of a text's letters.
func textLines(e element) (lines []polyline, err error) {
	both, err := fonts()
	if err != nil {
		return nil, err
	}
	style := e.attr("style")
	found := fontSize.FindStringSubmatch(style)
	if found == nil || e.attr("dominant-baseline") != "central" || len(e.Children) > 0 {
		return nil, fmt.Errorf("a text of style %q", style)
	}
	size, _ := strconv.ParseFloat(found[1], 64)
	f := both[0]
	if strings.Contains(style, "bold") {
		f = both[1]
	}
	const em = 2048 // units, so that nothing is rounded to pixels
	unit, pen := size/em, 0.0
	var buffer sfnt.Buffer
	for _, r := range e.Text {
		if r == '\u200b' || r == '\n' { // of no width
			continue
		}
		index, err := f.GlyphIndex(&buffer, r)
		if err != nil {
			return nil, err
		}
		if index == 0 {
			return nil, fmt.Errorf("the fonts have no %q", r)
		}
		segments, err := f.LoadGlyph(&buffer, index, fixed.I(em), nil)
		if err != nil {
			return nil, err
		}
		at := func(p fixed.Point26_6) point {
			return point{pen + unit*float64(p.X)/64, unit * float64(p.Y) / 64}
		}
		for _, s := range segments {
			if s.Op == sfnt.SegmentOpMoveTo {
				lines = append(lines, polyline{points: []point{at(s.Args[0])}, closed: true})
				continue
			}
			if len(lines) == 0 {
				return nil, errors.New("a letter that begins nowhere")
			}
			line := &lines[len(lines)-1]
			switch last := line.points[len(line.points)-1]; s.Op {
			case sfnt.SegmentOpLineTo:
				line.points = append(line.points, at(s.Args[0]))
			case sfnt.SegmentOpQuadTo:
				line.points = append(line.points, quadratic(last, at(s.Args[0]), at(s.Args[1]))...)
			default:
				return nil, errors.New("a letter with cubic curves")
			}
		}
		advance, err := f.GlyphAdvance(&buffer, index, fixed.I(em), xfont.HintingNone)
		if err != nil {
			return nil, err
		}
		pen += unit * float64(advance) / 64
	}
	// Half of what a line has above the baseline less what is below: what CSS calls central.
	shift := point{e.number("x", 0), e.number("y", 0) + 0.35*size}
	switch e.attr("text-anchor") {
	case "middle":
		shift.x -= pen / 2
	case "end":
		shift.x -= pen
	}
	return matrix{1, 0, 0, 1, shift.x, shift.y}.apply(lines), nil
}

// quadratic is short: letters are small.
func quadratic(a, b, c point) (line []point) {
	const steps = 5
	for i := 1; i <= steps; i++ {
		t := float64(i) / steps
		u := 1 - t
		line = append(line, point{}.plus(a, u*u).plus(b, 2*u*t).plus(c, t*t))
	}
	return line
}
