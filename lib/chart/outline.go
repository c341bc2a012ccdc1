package chart

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

type point struct{ x, y float64 }

func (p point) plus(q point, times float64) point { return point{p.x + times*q.x, p.y + times*q.y} }

// polyline is points joined by straight lines. All are closed where they are filled; closed tells whether a stroke is.
type polyline struct {
	points []point
	closed bool
}

// matrix maps (x,y) to (a·x + c·y + e, b·x + d·y + f).
type matrix struct{ a, b, c, d, e, f float64 }

func (m matrix) times(n matrix) matrix {
	return matrix{m.a*n.a + m.c*n.b, m.b*n.a + m.d*n.b, m.a*n.c + m.c*n.d, m.b*n.c + m.d*n.d,
		m.a*n.e + m.c*n.f + m.e, m.b*n.e + m.d*n.f + m.f}
}

func (m matrix) at(p point) point { return point{m.a*p.x + m.c*p.y + m.e, m.b*p.x + m.d*p.y + m.f} }

// growth is how many times as long lines become.
func (m matrix) growth() float64 { return math.Sqrt(math.Abs(m.a*m.d - m.b*m.c)) }

func (m matrix) apply(lines []polyline) []polyline {
	mapped := make([]polyline, len(lines))
	for i, line := range lines {
		mapped[i].closed = line.closed
		for _, p := range line.points {
			mapped[i].points = append(mapped[i].points, m.at(p))
		}
	}
	return mapped
}

// outline is an element's outline in its own units, and what takes these to pixels.
func outline(e element, m matrix) (lines []polyline, _ matrix, err error) {
	if text := e.attr("transform"); text != "" {
		name, inner, _ := strings.Cut(strings.TrimSuffix(text, ")"), "(")
		v, err := numbers(inner)
		switch {
		case err == nil && name == "translate" && len(v) == 2:
			m = m.times(matrix{1, 0, 0, 1, v[0], v[1]})
		case err == nil && name == "matrix" && len(v) == 6:
			m = m.times(matrix{v[0], v[1], v[2], v[3], v[4], v[5]})
		default:
			return nil, m, fmt.Errorf("a transform %q", text)
		}
	}
	switch e.XMLName.Local {
	case "path":
		lines, err = pathLines(e.attr("d"), m.growth())
	case "text":
		lines, err = textLines(e)
	case "rect":
		x, y, w, h := e.number("x", 0), e.number("y", 0), e.number("width", 0), e.number("height", 0)
		lines = []polyline{{[]point{{x, y}, {x + w, y}, {x + w, y + h}, {x, y + h}}, true}}
	case "polyline":
		lines, err = pathLines("M"+e.attr("points"), m.growth())
	case "polygon":
		lines, err = pathLines("M"+e.attr("points")+"Z", m.growth())
	default:
		err = fmt.Errorf("an outline of <%s>", e.XMLName.Local)
	}
	return lines, m, err
}

var token = regexp.MustCompile(`[A-Za-z]|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?`)

// pathLines are a path's lines; curves become lines so short that a picture grown so many times does not show them.
func pathLines(d string, growth float64) (lines []polyline, err error) {
	var at, start point
	var line *polyline
	begin := func(p point) {
		lines = append(lines, polyline{points: []point{p}})
		line, start = &lines[len(lines)-1], p
	}
	tokens := token.FindAllString(d, -1)
	command := ""
	for i := 0; i < len(tokens); {
		if c := tokens[i]; len(c) == 1 && strings.ContainsAny(c, "MmLlAaCcQqZz") {
			command, i = c, i+1
		}
		n := map[string]int{"M": 2, "L": 2, "A": 7, "C": 6, "Q": 4, "Z": 0}[strings.ToUpper(command)]
		if i+n > len(tokens) || command == "" || n == 0 && (line == nil || strings.ToUpper(command) != "Z") {
			return nil, fmt.Errorf("a path %.60q", d)
		}
		var v [7]float64
		for k := range n {
			if v[k], err = strconv.ParseFloat(tokens[i+k], 64); err != nil {
				return nil, fmt.Errorf("a path %.60q: %w", d, err)
			}
		}
		i += n
		points := make([]point, n/2) // those given, from the picture's corner
		from := point{}
		if command == strings.ToLower(command) {
			from = at
		}
		for k := range points {
			points[k] = from.plus(point{v[2*k], v[2*k+1]}, 1)
		}
		switch strings.ToUpper(command) {
		case "Z":
			line.closed, at = true, start
			command = "" // numbers here would mean nothing
			if i < len(tokens) && !strings.ContainsAny(tokens[i][:1], "MmZz") {
				begin(at)
			}
			continue
		case "M":
			begin(points[0])
			at, command = points[0], string(command[0]-1) // more pairs are lines
			continue
		}
		if line == nil {
			return nil, fmt.Errorf("a path %.60q that begins nowhere", d)
		}
		switch strings.ToUpper(command) {
		case "L":
			line.points = append(line.points, points[0])
		case "A":
			to := from.plus(point{v[5], v[6]}, 1)
			line.points = append(line.points, arc(at, to, v[0], v[1], v[2], v[3] != 0, v[4] != 0, growth)...)
		case "Q":
			points = []point{at.plus(points[0].plus(at, -1), 2./3), points[1].plus(points[0].plus(points[1], -1), 2./3),
				points[1]}
			line.points = append(line.points, cubic(at, points)...)
		case "C":
			line.points = append(line.points, cubic(at, points)...)
		}
		at = line.points[len(line.points)-1]
	}
	return lines, nil
}

func cubic(p0 point, p []point) (line []point) {
	const steps = 16
	for i := 1; i <= steps; i++ {
		t := float64(i) / steps
		u := 1 - t
		q := point{}.plus(p0, u*u*u).plus(p[0], 3*u*u*t).plus(p[1], 3*u*t*t).plus(p[2], t*t*t)
		line = append(line, q)
	}
	return line
}

// arc is an elliptical arc as SVG has it (SVG 2, appendix B.2.4).
func arc(from, to point, rx, ry, turned float64, large, sweep bool, growth float64) (line []point) {
	if rx == 0 || ry == 0 || from == to {
		return []point{to}
	}
	sin, cos := math.Sincos(turned * math.Pi / 180)
	dx, dy := (from.x-to.x)/2, (from.y-to.y)/2
	x, y := cos*dx+sin*dy, cos*dy-sin*dx
	rx, ry = math.Abs(rx), math.Abs(ry)
	if l := x*x/(rx*rx) + y*y/(ry*ry); l > 1 {
		rx, ry = rx*math.Sqrt(l), ry*math.Sqrt(l)
	}
	under := rx*rx*y*y + ry*ry*x*x
	f := math.Sqrt(max(0, rx*rx*ry*ry-under) / under)
	if large == sweep {
		f = -f
	}
	cx, cy := f*rx*y/ry, -f*ry*x/rx
	first := math.Atan2((y-cy)/ry, (x-cx)/rx)
	angle := math.Atan2((-y-cy)/ry, (-x-cx)/rx) - first
	switch {
	case sweep && angle < 0:
		angle += 2 * math.Pi
	case !sweep && angle > 0:
		angle -= 2 * math.Pi
	}
	centre := point{cos*cx - sin*cy + (from.x+to.x)/2, sin*cx + cos*cy + (from.y+to.y)/2}
	steps := int(min(4+math.Abs(angle)*math.Sqrt(max(rx, ry)*growth)*2, 200))
	for i := 1; i < steps; i++ {
		s, c := math.Sincos(first + angle*float64(i)/float64(steps))
		line = append(line, point{centre.x + cos*rx*c - sin*ry*s, centre.y + sin*rx*c + cos*ry*s})
	}
	return append(line, to)
}

// widened is what a stroke covers. Corners and, where asked for, ends are round.
func widened(lines []polyline, width float64, dashes []float64, round bool) (covered []polyline) {
	disc := func(p point) {
		line := arc(p.plus(point{width / 2, 0}, 1), p.plus(point{width / 2, -1e-6}, 1), width/2, width/2, 0, true, true, 4)
		covered = append(covered, polyline{line, true})
	}
	for _, line := range lines {
		points, gone := line.points, 0.0
		if line.closed {
			points = append(slices.Clone(points), points[0])
		}
		for i, p := range points {
			if inner := i > 0 && i < len(points)-1 || line.closed; width > 1.5 && (inner || round) && len(dashes) == 0 {
				disc(p)
			}
			if i == 0 {
				continue
			}
			q := points[i-1]
			length := math.Hypot(p.x-q.x, p.y-q.y)
			if length == 0 {
				continue
			}
			along := point{(p.x - q.x) / length, (p.y - q.y) / length}
			side := point{-along.y * width / 2, along.x * width / 2}
			for _, part := range dashed(gone, length, dashes) {
				a, b := q.plus(along, part[0]), q.plus(along, part[1])
				covered = append(covered, polyline{[]point{a.plus(side, -1), b.plus(side, -1), b.plus(side, 1),
					a.plus(side, 1)}, true})
			}
			gone += length
		}
	}
	return covered
}

// dashed are the parts that are drawn of a stretch, so far from a line's beginning. Each line begins with a dash.
func dashed(gone, length float64, dashes []float64) (parts [][2]float64) {
	total := 0.0
	for _, d := range dashes {
		total += d
	}
	if !(total > 0) {
		return [][2]float64{{0, length}}
	}
	at := -math.Mod(gone, 2*total) // an odd number of lengths changes places at each turn
	for i := 0; at < length; i++ {
		next := at + dashes[i%len(dashes)]
		if i%2 == 0 && next > 0 {
			parts = append(parts, [2]float64{max(at, 0), min(next, length)})
		}
		at = next
	}
	return parts
}

// numbers reads numbers between commas or spaces.
func numbers(text string) (list []float64, err error) {
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, fmt.Errorf("numbers %q", text)
		}
		list = append(list, v)
	}
	return list, nil
}
