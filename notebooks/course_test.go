package notebooks

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mostWords keeps a notebook's text readable in one sitting.
const mostWords = 1550

var (
	title   = regexp.MustCompile(`^# (\d\d · .+)\n`)
	heading = regexp.MustCompile(`(?m)^## (.+)$`)
)

// TestCourse checks that the notebooks are one course: with the same structure of headings, each linked to the next.
func TestCourse(t *testing.T) {
	paths, err := filepath.Glob("*.ipynb")
	if err != nil || len(paths) < 2 {
		t.Fatalf("notebooks %q, %v", paths, err)
	}
	texts, titles := make([]string, len(paths)), make([]string, len(paths))
	for i, path := range paths {
		for _, c := range read(t, path) {
			if c.CellType == "markdown" {
				texts[i] += string(c.Source) + "\n\n"
			}
		}
		found := title.FindStringSubmatch(texts[i])
		if found == nil || !strings.HasPrefix(found[1], path[:2]) {
			t.Fatalf("%s does not begin with its number and title: %.60q", path, texts[i])
		}
		titles[i] = found[1]
	}
	for i, path := range paths {
		text := texts[i]
		if n := len(strings.Fields(text)); n > mostWords {
			t.Errorf("%s has %d words, want at most %d", path, n, mostWords)
		}
		opening := strings.Join(strings.SplitN(text, "\n", 4)[:3], "\n")
		for _, near := range []int{i - 1, i + 1} {
			if near < 0 || near >= len(paths) {
				continue
			}
			if link := fmt.Sprintf("[%s](%s)", titles[near], paths[near]); !strings.Contains(opening, link) {
				t.Errorf("%s does not begin with the link %s", path, link)
			}
		}
		if i+1 < len(paths) {
			next := fmt.Sprintf("\n\nNext: [%s](%s)", titles[i+1], paths[i+1])
			if !strings.HasSuffix(strings.TrimSpace(text), next) {
				t.Errorf("%s does not end with the link to %s", path, paths[i+1])
			}
		}
		checkHeadings(t, path, text)
		if at := strings.LastIndex(text, "## Read on"); !strings.Contains(text[max(at, 0):], "](../lib/") {
			t.Errorf("%s does not say at its end where the library is", path)
		}
		contents := fmt.Sprintf("| [%s](%s) |", titles[i], paths[i])
		if i == 0 {
			contents = "| " + titles[0] + " |"
		}
		if !strings.Contains(texts[0], contents) {
			t.Errorf("%s has no line %q for %s", paths[0], contents, path)
		}
	}
}

// checkHeadings checks the sections of a notebook: question, plan, run, measurement, comparison, and the same ending.
func checkHeadings(t *testing.T, path, text string) {
	var all []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	if all[0] != "The question" {
		t.Errorf("%s begins with the heading %q", path, all[0])
	}
	if end := strings.Join(all[max(0, len(all)-3):], ", "); end != "What to remember, Exercise, Read on" {
		t.Errorf("%s ends with the headings %s", path, end)
	}
	between := strings.ToLower(strings.Join(all, "; "))
	for _, part := range []string{"plan", "run", "measured|counted", "compared"} {
		if !regexp.MustCompile(`\b(` + part + `)\b`).MatchString(between) {
			t.Errorf("%s has no heading with %q among %q", path, part, all)
		}
	}
}
