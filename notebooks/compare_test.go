package notebooks

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A notebook's text outputs are compared with those of a second run. A chart counts as its text, which has its series.
//
//   - Text must be equal, except for the effects of the order of float32 sums: a number with a fraction may differ by
//     one in its last digit and mostErrors roundings; a rounding error, which is a number with a negative exponent, by
//     a factor of mostErrors.
//   - In a cell tagged "measured" nine of ten words must be equal, since a list of what takes longest may change, and
//     half of the numbers must be within a factor of mostTimes. These numbers depend on the machine and its load:
//     times, orders of events, and accumulated rounding errors.

// measuredTag marks a cell, in its file, as one that shows measurements.
const measuredTag = "measured"

// mostErrors is the number of rounding errors, or the factor between two, that is ignored.
const mostErrors = 10

// rounding is the largest relative error of one rounding to float32.
const rounding = 1.0 / (1 << 24)

// mostTimes is the allowed factor for half of a cell's measurements. It is large since times vary on a machine with
// other load; it still finds another unit, size or program.
const mostTimes = 20

// differences lists the differences of a rerun notebook from the committed one.
func differences(committed, again []cell) (all []string) {
	if len(committed) != len(again) {
		return []string{fmt.Sprintf("%d cells, and %d when run again", len(committed), len(again))}
	}
	for i, was := range committed {
		compare := exactly
		if slices.Contains(was.Metadata.Tags, measuredTag) {
			compare = measured
		}
		if why := compare(was.said(), again[i].said()); why != "" {
			all = append(all, fmt.Sprintf("cell %d: %s", i+1, why))
		}
	}
	return all
}

// disordered lists the code cells whose execution counts are not 1, 2, 3, …, as of one kernel that ran them in order.
func disordered(cells []cell) (all []string) {
	n := 0
	for i, c := range cells {
		if c.CellType != "code" {
			continue
		}
		if n++; c.Count != n {
			all = append(all, fmt.Sprintf("cell %d: execution count %d, want %d", i+1, c.Count, n))
		}
	}
	return all
}

// said returns all outputs of a cell as text.
func (c cell) said() string {
	var all strings.Builder
	for _, o := range c.Outputs {
		all.WriteString(string(o.Text + o.Data.Plain))
	}
	return all.String()
}

// number is one without a sign.
var number = regexp.MustCompile(`\d+(?:\.\d+)?(?:e[+-]\d+)?`)

// exactly compares text in which nothing was measured, line by line, however wide its columns are.
func exactly(was, is string) string {
	wasLines, isLines := strings.Split(was, "\n"), strings.Split(is, "\n")
	if len(wasLines) != len(isLines) {
		return fmt.Sprintf("%d lines, and %d when run again: %q, and %q", len(wasLines), len(isLines), was, is)
	}
	for i, a := range wasLines {
		b := isLines[i]
		same := slices.EqualFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), near)
		if !same || words(a) != words(b) {
			return fmt.Sprintf("%q, and %q when run again", a, b)
		}
	}
	return ""
}

// words is a line without its numbers, and without columns.
func words(line string) string {
	return strings.Join(strings.Fields(number.ReplaceAllString(line, " # ")), " ")
}

// near reports whether two numbers are equal except for differences between processors.
func near(a, b string) bool {
	if a == b {
		return true
	}
	x, _ := strconv.ParseFloat(a, 64) // the expression matches nothing else
	y, _ := strconv.ParseFloat(b, 64)
	switch small := func(s string) bool { return strings.Contains(s, "e-") }; {
	case small(a) && small(b):
		return max(x/y, y/x) <= mostErrors
	case a == "0" && small(b) || b == "0" && small(a):
		return x+y <= mostErrors*rounding
	}
	_, digits, _ := strings.Cut(a, ".")
	_, others, _ := strings.Cut(b, ".")
	most := 1.5*math.Pow10(-len(digits)) + mostErrors*rounding*x
	return digits != "" && len(digits) == len(others) && !strings.Contains(a+b, "e") && math.Abs(x-y) <= most
}

var (
	// drawn is a row of a chart in text, whose length depends on measurements.
	drawn = regexp.MustCompile(`[A-Z·]{12,}|[▁-█]+`)
	// token is a word, which may have digits, or a number, which may have a unit of time.
	token  = regexp.MustCompile(`\p{L}[\p{L}\p{N}_]*|(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(ns|µs|ms|s)?`)
	second = map[string]float64{"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "": 1}
)

// measured compares text of measurements.
func measured(was, is string) string {
	wasWords, wasNumbers := parse(was)
	isWords, isNumbers := parse(is)
	both := 0
	for word := range wasWords {
		if isWords[word] {
			delete(wasWords, word)
			delete(isWords, word)
			both++
		}
	}
	if only := len(wasWords) + len(isWords); only*9 > both {
		was, is := slices.Sorted(maps.Keys(wasWords)), slices.Sorted(maps.Keys(isWords))
		return fmt.Sprintf("words %q, and %q instead when run again", was, is)
	}
	var times []float64
	for line, numbers := range wasNumbers {
		for i, x := range numbers[:min(len(numbers), len(isNumbers[line]))] {
			if y := isNumbers[line][i]; x > 0 && y > 0 {
				times = append(times, max(x/y, y/x))
			}
		}
	}
	if slices.Sort(times); len(times) > 0 && times[len(times)/2] <= mostTimes {
		return ""
	}
	return fmt.Sprintf("half of its measurements are, when run again, over %d times as large or as small", mostTimes)
}

// parse returns the words of a text, and its numbers by the words of the line they are in, times in seconds.
func parse(text string) (words map[string]bool, numbers map[string][]float64) {
	words, numbers = map[string]bool{}, map[string][]float64{}
	for line := range strings.Lines(text) {
		var here []string
		var found []float64
		for _, t := range token.FindAllStringSubmatch(drawn.ReplaceAllString(line, " "), -1) {
			if x, err := strconv.ParseFloat(t[1], 64); err == nil {
				found = append(found, x*second[t[2]])
			} else {
				here = append(here, t[0])
				words[t[0]] = true
			}
		}
		key := strings.Join(here, " ")
		numbers[key] = append(numbers[key], found...)
	}
	return words, numbers
}

// The comparison finds what it is for, and only that.
func TestDifferences(t *testing.T) {
	says := func(said string, tags ...string) []cell {
		c := cell{CellType: "code", Count: 1, Outputs: []output{{Text: text(said)}}}
		c.Metadata.Tags = tags
		return []cell{c}
	}
	const times = "rank 0 waited 12.5 ms, all 3µs\nrank 1 waited 0.1 ms, all 3µs\ncompute CCCCCCCCCC···CCC 10 → 20"
	for _, test := range []struct {
		name, was, is string
		measured      bool
		found         string
	}{
		{name: "the same", was: "a 1 b 2.5", is: "a 1 b 2.5"},
		{name: "rounded otherwise", was: "loss 3.2919", is: "loss 3.2920"},
		{name: "another rounding error", was: "off  9.5e-07 |", is: "off 2e-06 |"},
		{name: "no rounding error", was: "off 9.5e-07", is: "off 1.2e-05", found: "1.2e-05"},
		{name: "an error that is none", was: "off 9.5e-07", is: "off 0", found: "off 0"},
		{name: "an error that is hardly one", was: "off 2.4e-07", is: "off 0"},
		{name: "fewer digits", was: "2.50", is: "2.5", found: "2.5"},
		{name: "seven digits", was: "loss 3.564113", is: "loss 3.564116"},
		{name: "wrong digits", was: "loss 3.564113", is: "loss 3.564119", found: "3.564119"},
		{name: "another loss", was: "loss 3.2919", is: "loss 3.2921", found: "3.2921"},
		{name: "another count", was: "24 permutes", is: "25 permutes", found: "25 permutes"},
		{name: "another word", was: "right", is: "wrong", found: "wrong"},
		{name: "another line", was: "a", is: "a\nb", found: "2 when run again"},
		{name: "slower", was: times, measured: true,
			is: "rank 0 waited 92.5 ms, all 2ms\nrank 1 waited 1.1 ms, all 30µs\ncompute CC···········CCC 90 → 91"},
		{name: "other words", was: times, is: strings.Replace(times, "waited", "failed", 1), measured: true,
			found: "failed"},
		{name: "no numbers", was: times, is: "rank waited ms, all, compute", measured: true, found: "half"},
		{name: "another unit", was: times, measured: true, found: "half",
			is: "rank 0 waited 12500 ms, all 3ms\nrank 1 waited 100 ms, all 3ms\ncompute C··············C 10 → 20"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var tags []string
			if test.measured {
				tags = []string{measuredTag}
			}
			got := strings.Join(differences(says(test.was, tags...), says(test.is)), "\n")
			if (got == "") != (test.found == "") || !strings.Contains(got, test.found) {
				t.Errorf("found %q, want %q", got, test.found)
			}
		})
	}
	if got := differences(says("a"), nil); len(got) != 1 {
		t.Errorf("a cell less: %q", got)
	}
}

// A count is found that is wrong, twice there, or missing, in notebooks as they are committed.
func TestDisordered(t *testing.T) {
	whole := read(t, "00-devices.ipynb")
	if got := disordered(whole); len(got) != 0 {
		t.Fatalf("before anything is damaged: %q", got)
	}
	var code []int
	for i, c := range whole {
		if c.CellType == "code" {
			code = append(code, i)
		}
	}
	for name, damage := range map[string]func([]cell){
		"has not run":   func(cells []cell) { cells[code[2]].Count = 0 },
		"ran again":     func(cells []cell) { cells[code[len(code)-1]].Count++ },
		"out of order":  func(cells []cell) { cells[code[0]].Count, cells[code[1]].Count = 2, 1 },
		"a cell before": func(cells []cell) { cells[code[0]].CellType = "markdown" },
	} {
		cells := slices.Clone(whole)
		damage(cells)
		if len(disordered(cells)) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
