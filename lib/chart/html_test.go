package chart

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// fragmentShape is all that a picture's HTML may be. The script holds no "<", so nothing in it can look like a tag.
var fragmentShape = regexp.MustCompile(`^<span data-shardbook-chart="([0-9a-f]{16})" style="[^"<>]*">` +
	`<img alt="([^"<>]*)" width="\d+" height="\d+" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"></span>` +
	`<script>([^<]*)</script>$`)

var callShape = regexp.MustCompile(`(?s)live\("[0-9a-f]{16}",\d+,\d+,(\{.*\})\);\n\}\)\(\)$`)

func checkFragment(t *testing.T, c *Chart) {
	t.Helper()
	fragment, err := c.HTML()
	must.Do(t, err)
	m := fragmentShape.FindStringSubmatch(fragment)
	if m == nil {
		t.Fatalf("not the shape of a chart: %.300q", fragment)
	}
	if got := html.UnescapeString(m[2]); !strings.HasPrefix(got, plain(c.title)) || len(got) < len(plain(c.title))+10 {
		t.Errorf("alt text %q, want %q and the gist", got, plain(c.title))
	}
	svg := must.Get(base64.StdEncoding.DecodeString(m[3]))(t)
	count, _, err := elements(string(svg))
	if err != nil {
		t.Fatalf("the picture is not well-formed: %v\n%.500s", err, svg)
	}
	for name := range count {
		switch name {
		case "svg", "g", "rect", "path", "text", "defs", "clipPath", "polygon", "polyline", "linearGradient", "stop",
			"style":
		default:
			t.Errorf("a %s element in the picture", name)
		}
	}
	call := callShape.FindStringSubmatch(m[4])
	if call == nil || !json.Valid([]byte(call[1])) {
		t.Errorf("the script does not end in a call with JSON: %.300q", m[4])
	}
}

var hostile = []string{
	"plain", "a < b & c > d", `"quoted" and 'single'`, "</script><script>alert(1)</script>", "<!--", "]]>",
	"<img src=x onerror=alert(1)>", "ünïcödé 对 😀", "a\x00b\x1b[31m\nc\u2028d\ufffe", "\xff\xfe", "{a|b}", "{b}: {c}",
	"__f__function(){throw 1}__f__", "__proto__", "__proto__\n__proto__", "constructor", "hasOwnProperty",
	"toString", "length", "${x}`", "%MY_ECHARTS%", strings.Repeat("long ", 200), " ",
}

func hostileCharts(s, name string) []*Chart {
	y := []float64{1, 2}
	return []*Chart{
		Line(s, s, s, Series{Name: name, Y: y}, Series{Name: "other " + name, Y: y}),
		Bar(s, []string{s, "other " + s}, Series{Name: name, Y: y}).Axes(s, s),
		HeatMap(s, []string{s, "other " + s}, []string{name}, [][]float64{y}),
		Gantt(s, Span{"lane " + s, s, "kind " + name, 0, 1}),
		Roofline(s, 1, 1, Point{s, 1, 1}, Point{name, 1, 1}),
	}
}

func TestHTMLHoldsAnyText(t *testing.T) {
	for _, s := range hostile {
		for _, c := range hostileCharts(s, s) {
			checkFragment(t, c)
		}
		got := must.Get(Table(s, []string{s}, [][]string{{s}}).HTML())(t)
		tags := regexp.MustCompile(`</?(table|caption|thead|tbody|tr|th|td)( style="text-align:(left|right)")?>`)
		if rest := tags.ReplaceAllString(got, ""); strings.ContainsAny(rest, "<>") {
			t.Errorf("a table of %q has other tags: %s", s, got)
		}
	}
}

func TestEqualChartsShareAMark(t *testing.T) {
	mark := func(title string) string {
		fragment := must.Get(Line(title, "x", "y", Series{Y: []float64{1}}).HTML())(t)
		return fragmentShape.FindStringSubmatch(fragment)[1]
	}
	first, again, other := mark("a"), mark("a"), mark("b")
	if first != again || first == other {
		t.Errorf("marks %s and %s of equal charts, %s of another", first, again, other)
	}
}

func FuzzHTML(f *testing.F) {
	for i, s := range hostile {
		f.Add(s, hostile[len(hostile)-1-i])
	}
	f.Fuzz(func(t *testing.T, title, name string) {
		charts := hostileCharts(title, name)
		checkFragment(t, charts[len(title)%len(charts)])
	})
}
