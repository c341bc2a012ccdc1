package chart

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Span is one stretch of time in a [Gantt] chart.
type Span struct {
	// Lane names the row: a rank, a device or a stream.
	Lane string
	// Label is written inside the bar where it fits, and may be empty.
	Label string
	// Kind sets the colour and is listed in the legend: "forward", "all-reduce".
	Kind string
	// Start and End are in the unit that the time axis states; End is not before Start.
	Start, End float64
}

type gantt struct {
	spans []Span
	lanes []string // in order of appearance, as are kinds
	kinds []string
}

// Gantt draws what each lane did over time: one row per lane in order of appearance, one colour per kind. Spans of a
// lane that overlap are drawn below each other in its row. Name the time axis, with its unit, by [Chart.Axes].
//
// It is an error if there are no spans, if one lacks a lane or kind, if one ends before it starts, or if a time is NaN
// or infinite.
func Gantt(title string, spans ...Span) *Chart {
	k := &gantt{spans: slices.Clone(spans)}
	for _, s := range spans {
		if !slices.Contains(k.lanes, s.Lane) {
			k.lanes = append(k.lanes, s.Lane)
		}
		if !slices.Contains(k.kinds, s.Kind) {
			k.kinds = append(k.kinds, s.Kind)
		}
	}
	return &Chart{title: title, x: "time", kind: k}
}

func (k *gantt) check(*Chart) error {
	if len(k.spans) == 0 {
		return errors.New("no spans")
	}
	for i, s := range k.spans {
		if s.Lane == "" || s.Kind == "" {
			return fmt.Errorf("span %d (lane %q, kind %q) lacks a lane or a kind", i, s.Lane, s.Kind)
		}
		if err := checkNumbers("times", []float64{s.Start, s.End}, false); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		if s.End < s.Start {
			return fmt.Errorf("span %d of lane %q ends at %v, before it starts at %v", i, s.Lane, s.End, s.Start)
		}
	}
	if low, high := k.extent(); low != high && nearlyEqual(low, high) {
		return fmt.Errorf("the times from %v to %v differ too little for their size: count them from the first", low,
			high)
	}
	return checkCount("spans", len(k.spans), maxMarks)
}

func (k *gantt) extent() (low, high float64) {
	low = slices.MinFunc(k.spans, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) }).Start
	return low, slices.MaxFunc(k.spans, func(a, b Span) int { return cmp.Compare(a.End, b.End) }).End
}

// tracks assigns each span of a lane, in order of start, to the first track that is free, so that spans of one track do
// not overlap. It returns the track of each span and the number of tracks of each lane.
func (k *gantt) tracks() (track []int, count map[string]int) {
	order := make([]int, len(k.spans))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(k.spans[a].Start, k.spans[b].Start) })
	track, count = make([]int, len(k.spans)), map[string]int{}
	free := map[string][]float64{} // when each track of a lane is free again
	for _, i := range order {
		s := k.spans[i]
		t := slices.IndexFunc(free[s.Lane], func(end float64) bool { return end <= s.Start })
		if t < 0 {
			t = len(free[s.Lane])
			free[s.Lane] = append(free[s.Lane], 0)
			count[s.Lane]++
		}
		free[s.Lane][t] = s.End
		track[i] = t
	}
	return track, count
}

// A span's data are: start, end, lane, track, tracks of that lane. %s is the colour of the label.
const spanShape = `__f__function(params, api) {
	var a = api.coord([api.value(0), api.value(2)]), b = api.coord([api.value(1), api.value(2)]);
	var band = api.size([0, 1])[1] * 0.8, height = band / api.value(4), width = Math.max(b[0] - a[0], 1);
	var shape = {x: a[0], y: a[1] - band / 2 + height * api.value(3), width: width, height: Math.max(height - 1, 1)};
	var rect = {type: "rect", shape: shape, style: {fill: api.visual("color"), stroke: "#fff", ` +
	`lineWidth: width > 3 ? 1 : 0}};
	var text = api.style().text;
	if (width > Math.min(8 + 7 * text.length, 48) && height > 11) {
		rect.textContent = {type: "text", style: {text: text, fill: "%s", fontSize: 11,
			overflow: "truncate", ellipsis: "…", width: width - 6}};
		rect.textConfig = {position: "inside"};
	}
	return rect;
}__f__`

func (k *gantt) options(c *Chart) object {
	track, count := k.tracks()
	series := make([]object, len(k.kinds))
	for i, kind := range k.kinds {
		var data []object
		for j, s := range k.spans {
			if s.Kind == kind {
				data = append(data, object{"name": s.Label,
					"value": []any{s.Start, s.End, slices.Index(k.lanes, s.Lane), track[j], count[s.Lane]}})
			}
		}
		series[i] = object{
			"type": "custom", "name": kind, "data": data, "clip": true,
			"renderItem": fmt.Sprintf(spanShape, readable(colour(i))),
			"dimensions": []string{"start", "end", "lane", "track", "tracks"},
			"encode":     object{"x": []int{0, 1}, "y": 2, "tooltip": []int{0, 1}},
			"label":      object{"show": true, "formatter": "{b}"},
			"itemStyle":  object{"color": colour(i)},
		}
	}
	h := heading(c)
	h["xAxis"] = c.ranged(numberAxis(c.x, false, false))
	h["yAxis"] = rowAxis(c.y, k.lanes)
	h["series"] = series
	return h
}

func (k *gantt) text(c *Chart) string {
	const columns = 60
	low, high := k.extent()
	if c.xs != nil {
		low, high = c.xs[0], c.xs[1]
	}
	column := func(t float64) int {
		if high == low {
			return 0
		}
		return min(int((t-low)/(high-low)*columns), columns-1)
	}
	track, count := k.tracks()
	letters := initials(k.kinds)
	rows := map[string][][]rune{}
	for lane, n := range count {
		for range n {
			rows[lane] = append(rows[lane], []rune(strings.Repeat("·", columns)))
		}
	}
	for i, s := range k.spans {
		from, to := column(s.Start), column(s.End)
		// A bar covers at least one column, so that a short span is visible.
		for j := from; j < max(to, from+1) || (s.End == high && j == columns-1 && j <= to); j++ {
			rows[s.Lane][track[i]][j] = letters[slices.Index(k.kinds, s.Kind)]
		}
	}
	var lines [][]string
	for _, lane := range k.lanes {
		for t, row := range rows[lane] {
			name := lane
			if t > 0 {
				name = ""
			}
			lines = append(lines, []string{name, string(row)})
		}
	}
	legend := make([]string, len(k.kinds))
	for i, kind := range k.kinds {
		legend[i] = string(letters[i]) + " " + plain(kind)
	}
	return fmt.Sprintf("%s, %s … %s: %s\n", plain(c.x), number(low), number(high), strings.Join(legend, ", ")) +
		textTable(nil, lines)
}

// initials gives each name a character of its own: a letter of the name where one is free.
func initials(names []string) []rune {
	used := map[rune]bool{}
	out := make([]rune, len(names))
	for i, name := range names {
		for _, r := range strings.ToUpper(name) + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" {
			if !used[r] && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
				out[i], used[r] = r, true
				break
			}
		}
		if out[i] == 0 {
			out[i] = '#'
		}
	}
	return out
}
