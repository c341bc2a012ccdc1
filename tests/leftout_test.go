// Package tests is the last package of go test ./..., and prints a table of the tests that were skipped, and why.
package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

func TestLeftOut(t *testing.T) {
	others(t)
	fresh(t)
	omissions := must.Get(omissions())(t)
	text := table(omissions)
	t.Log("\n" + text)
	// go test shows a test's own output only if it fails, so this writes to the standard error of go test, the parent.
	if out, err := stderrOf(os.Getppid()); err == nil && !testing.Verbose() {
		defer out.Close()
		fmt.Fprint(out, text)
	}
}

// others waits for the tests of other packages: go test starts this package last, but runs several at a time.
func others(t *testing.T) {
	deadline, bounded := t.Deadline()
	for quiet := 0; quiet < 2; quiet++ {
		time.Sleep(200 * time.Millisecond)
		if bounded && time.Until(deadline) < time.Minute {
			t.Log("other packages still run: tests that they skip may be missing")
			return
		}
		if siblings() > 0 {
			quiet = -1
		}
	}
}

// siblings counts the other processes of go test: tests, compilers, linkers. It is 0 without /proc.
func siblings() (n int) {
	parent := fmt.Sprint(os.Getppid())
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		stat, err := os.ReadFile(path)
		_, rest, ok := strings.Cut(string(stat), ") ") // the process's name may have spaces
		fields := strings.Fields(rest)
		if err == nil && ok && fields[1] == parent && path != fmt.Sprintf("/proc/%d/stat", os.Getpid()) {
			n++
		}
	}
	return n
}

// fresh keeps go test from caching this test's result: it never caches a test that reads a file of the module that is
// only seconds old.
func fresh(t *testing.T) {
	const name = "ran.txt"
	if err := os.WriteFile(name, []byte(time.Now().String()+"\n"), 0o644); err != nil {
		t.Log("go test may cache this test, and then show no table:", err)
		return
	}
	must.Get(os.ReadFile(name))(t)
}

// omissions reads what each package's last run skipped.
func omissions() (all []systest.Omission, err error) {
	folder, err := systest.Records()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var o systest.Omission
			if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
				return nil, fmt.Errorf("%s: %w: remove the file", path, err)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// table has a row for each reason and test of a package; it merges the parts of a test that have the same reason.
func table(omissions []systest.Omission) string {
	type row struct{ why, where string }
	what := map[row][]string{}
	for _, o := range omissions {
		name, _, _ := strings.Cut(o.Test, "/")
		r := row{string(o.Why), filepath.ToSlash(o.Package) + " " + name}
		if text := strings.ReplaceAll(o.What, "\n", " "); !slices.Contains(what[r], text) {
			what[r] = append(what[r], text)
		}
	}
	tier, hint := "full", ""
	if !systest.Full() {
		tier, hint = "quick", "; SHARDBOOK_TEST=full runs the full tier"
	}
	if len(what) == 0 {
		return fmt.Sprintf("\nThe %s tier left nothing out.\n", tier)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\nLeft out by the %s tier: %d tests or parts of tests%s.\n", tier, len(what), hint)
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "why\ttest\twhat")
	for _, r := range slices.SortedFunc(maps.Keys(what),
		func(a, b row) int { return strings.Compare(a.why+a.where, b.why+b.where) }) {
		shown := strings.Join(what[r], "; ")
		if len(shown) > 120 {
			shown = shown[:117] + "..."
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", r.why, r.where, shown)
	}
	out.Flush()
	return text.String()
}

func TestTable(t *testing.T) {
	t.Setenv(systest.EnvTier, "quick")
	got := table([]systest.Omission{
		{Package: "lib/b", Test: "TestB/case=1", Why: systest.NoGPU, What: "a GPU"},
		{Package: "lib/a", Test: "TestA/case=2", Why: systest.Tier, What: "3 of 5 cases"},
		{Package: "lib/a", Test: "TestA/case=1", Why: systest.Tier, What: "3 of 5 cases"},
		{Package: "lib/a", Test: "TestA", Why: systest.Tier, What: "two\nlines"},
	})
	const want = `
Left out by the quick tier: 2 tests or parts of tests; SHARDBOOK_TEST=full runs the full tier.
why     test         what
no GPU  lib/b TestB  a GPU
tier    lib/a TestA  3 of 5 cases; two lines
`
	if got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
	if got := table(nil); got != "\nThe quick tier left nothing out.\n" {
		t.Errorf("nothing left out: %q", got)
	}
}
