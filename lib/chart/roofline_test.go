package chart

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestRoofline(t *testing.T) {
	svg, err := Roofline("r", 1e12, 1e11, Point{"matmul", 100, 8e11}, Point{"add", 0.125, 1e10}).SVG()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">matmul<", ">add<", ">bound by memory<", ">1e12<", ">0.01<", ">1000<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in the picture", want)
		}
	}
}

// Numbers as far apart as a chart takes them.
func TestRooflineOfExtremes(t *testing.T) {
	svg, err := Roofline("r", 1e30, 1e15, Point{"a", 1e-15, 1e30}, Point{"b", 1e30, 1e-15}).SVG()
	if err != nil || strings.Contains(svg, "NaN") {
		t.Errorf("error %v, or NaN in the picture", err)
	}
}

func TestRooflineErrors(t *testing.T) {
	at := Point{"a", 1, 1}
	for _, test := range []struct {
		chart *Chart
		want  string
	}{
		{Roofline("r", 1, 1), "no points"},
		{Roofline("r", 0, 1, at), "peak by bandwidth[0] is 0"},
		{Roofline("r", 1, nan, at), "peak by bandwidth[1] is NaN"},
		{Roofline("r", 1e30, 1e-10, at), "outside 1e-15"},
		{Roofline("r", 1, 1, at, Point{"b", inf, 1}), `point 1, "b": X, Y[0]`},
		{Roofline("r", 1, 1, Point{"b", 1, -1}), "log axis"},
		{Roofline("r", 1, 1, Point{"b", 1e-16, 1}), "outside 1e-15"},
		{Roofline("r", 1, 1, at).LogX(), "LogX is for"},
		{Roofline("r", 1, 1, make([]Point, maxMarks+1)...), "point 0"},
	} {
		if err := test.chart.Err(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v does not say %q", err, test.want)
		}
	}
}

// Names that are shown cover no point and no other name; a point far from all others has one.
func TestBesidePoints(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	same := func(p Point) (x, y float64) { return p.X, p.Y }
	for range 200 {
		points := []Point{{"far", -1000, -1000}}
		for range random.IntN(30) {
			points = append(points, Point{strings.Repeat("n", random.IntN(12)), 300 * random.Float64(),
				200 * random.Float64()})
		}
		positions := besidePoints(points, same)
		if len(positions) != len(points) || positions[0] == "" {
			t.Fatalf("positions %q", positions)
		}
		var names []box
		for i, p := range points {
			w := min(textWidth(p.Name, 11), 140)
			b := box{p.X - w/2, p.Y - 7, p.X + w/2, p.Y + 7} // around the point, then moved
			dx, dy := 0.0, 0.0
			switch positions[i] {
			case "":
				continue
			case "right":
				dx = w/2 + 10
			case "left":
				dx = -w/2 - 10
			case "bottom":
				dy = 17
			case "top":
				dy = -17
			default:
				t.Fatalf("position %q", positions[i])
			}
			names = append(names, box{b.left + dx, b.top + dy, b.right + dx, b.bottom + dy})
		}
		for i, a := range names {
			for _, b := range names[:i] {
				const rounding = 1e-9
				if a.left+rounding < b.right && b.left+rounding < a.right &&
					a.top+rounding < b.bottom && b.top+rounding < a.bottom {
					t.Fatalf("names %v and %v meet", a, b)
				}
			}
			for _, p := range points {
				if a.left < p.X && p.X < a.right && a.top < p.Y && p.Y < a.bottom {
					t.Fatalf("a name %v covers %v", a, p)
				}
			}
		}
	}
}
