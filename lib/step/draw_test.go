package step

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	zbv = "schedule zb-v stages=4\nrank 0: 0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1 0U1 3U1\n" +
		"rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 1U1 2U1"
	zbh1 = "schedule zb-h1\nrank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 0U2\nrank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 " +
		"1W2 1U2"
)

// gpipe is that schedule.
func gpipe(ranks, microbatches int) string {
	var b strings.Builder
	fmt.Fprintln(&b, "schedule gpipe")
	for r := range ranks {
		fmt.Fprintf(&b, "rank %d:", r)
		for _, pass := range "FB" {
			for m := range microbatches {
				fmt.Fprintf(&b, " %d%c%d", r, pass, m)
			}
		}
		fmt.Fprintf(&b, " %dU%d\n", r, microbatches-1)
	}
	return b.String()
}

// TestDraw draws timelines with times that are integers, fractions, and without a common unit.
func TestDraw(t *testing.T) {
	for _, test := range []struct {
		name     string
		timeline Timeline
		want     string
	}{
		{"two chunks", simulated(t, parsed(t, zbv), Equal()), `
rank 0 │A0  A1  ·   B0  B0i B0w B1  B1i B1w A0i A0w ·   A1i A1w
rank 1 │·   A0  B0  A1  B1  B0i B0w A0i A0w B1i B1w A1i A1w ·
A0 forward, B0i input gradient, B0w weight gradient, A, B, … a rank's blocks, · idle; a column is 1
`},
		{"updates and thirds", simulated(t, parsed(t, gpipe(2, 1)),
			Costs{Forward: []float64{1. / 3}, Backward: []float64{2. / 3}, Update: []float64{1}}), `
rank 0 │0  ·  ·  ·  0b─── u───────
rank 1 │·  0  0b─── u─────── ·  ·
0 forward, 0b backward, u update, · idle; a column is 0.333333333
`},
		{"no unit", simulated(t, parsed(t, zbh1),
			Costs{Forward: []float64{3.14159}, InputGrad: []float64{2.71828}, WeightGrad: []float64{1.41421}}), `
rank 0 │0───── 1────   ·  ·0i─── 0w 2───── 1i── 1w   · 2i─── 2w
rank 1 │·  ·  ·0──── 0i─── 1───── 1i─── 0w 2──── 2i─── 1w 2w  ·
0 forward, 0i input gradient, 0w weight gradient, · idle; a column is 1.41421
`},
		{"no time", simulated(t, parsed(t, gpipe(1, 1)), Costs{Forward: []float64{0}, Backward: []float64{0}}), `
rank 0 │
· idle; drawn to scale, with f, b, i, w, u for passes that have no room for a number
`},
	} {
		if got := "\n" + test.timeline.String(); got != test.want {
			t.Errorf("%s: got%swant%s", test.name, got, test.want)
		}
	}
}

// TestDrawScale draws what would be too wide within the width, each pass where it is.
func TestDrawScale(t *testing.T) {
	for _, timeline := range []Timeline{
		simulated(t, parsed(t, gpipe(3, 400)), Equal()),
		simulated(t, parsed(t, gpipe(3, 3)), Costs{Forward: []float64{1e-9}}),
	} {
		text := timeline.String()
		if !strings.Contains(text, "drawn to scale") {
			t.Errorf("not to scale:\n%s", text)
		}
		for i, line := range strings.Split(text, "\n")[:len(timeline.Start)] {
			_, row, _ := strings.Cut(line, "│")
			runes := []rune(row)
			if len(runes) > drawWidth || len(runes) < drawWidth/2 {
				t.Errorf("rank %d: %d characters, want at most %d: %s", i, utf8.RuneCountInString(row), drawWidth, row)
			}
			first := int(timeline.Start[i] / timeline.Makespan * drawWidth)
			if strings.Trim(string(runes[:first]), "·") != "" {
				t.Errorf("rank %d starts before %d: %s", i, first, row)
			}
		}
	}
}

func TestLetter(t *testing.T) {
	for n, want := range map[int]string{0: "A", 25: "Z", 26: "AA", 27: "AB", 52: "BA"} {
		if got := letter(n); got != want {
			t.Errorf("letter(%d) is %s, want %s", n, got, want)
		}
	}
}
