package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/zero"
)

// runSchedule runs the command in this process and returns what it printed.
func runSchedule(in string, args ...string) (string, error) {
	cmd := newCommand()
	var out strings.Builder
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"schedule"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

func schedulePrinted(t *testing.T, args ...string) string {
	t.Helper()
	text, err := runSchedule("", args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return text
}

// scheduleJSON is the one object that --json prints.
func scheduleJSON(t *testing.T, args ...string) (r scheduleResult) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(schedulePrinted(t, append(slices.Clone(args), "--json")...)))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%q: %v, or more than one object", args, err)
	}
	return r
}

func TestScheduleText(t *testing.T) {
	const want = `1f1b: 2 devices, 3 micro-batches

rank 0 │0  1  ·  ·  0b─── 2  1b─── ·  2b───
rank 1 │·  0  0b─── 1  1b─── 2  2b─── ·  ·
0 forward, 0b backward, · idle; a column is 1

bubble     25.00% of a device's time: 1/4, as (d-1)/(m+d-1)
step time  12, the period of steps with no barrier between them
makespan   12, from the first start to the last end
memory     at most 2, 1 micro-batches of its part are saved on device 0, 1, …
`
	if got := schedulePrinted(t, "--stages", "2", "--microbatches", "3"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for args, want := range map[string]string{
		"--kind naive --stages 3":                           "2/3, as (d-1)/d",
		"--kind interleaved --chunks 3":                     "1/9, as (d-1)/(v·m+d-1)", // 3/27
		"--kind zb-h1":                                      "1/9, as (d-1)/(3m+d-1)",
		"--kind zb-h1 --microbatches 2":                     "5/11",
		"--kind zb-v":                                       "0.00% of a device's time: 0\n",
		"--kind zb-h2 --microbatches 4":                     "1/5, as (2d-1-m)/(3m+2d-1-m)", // 3/15
		"--kind dualpipe":                                   "1/13, as (d-2)/(3m+d-2)",
		"--kind 1f1b --cost F=2,B=4":                        "3/11\n",
		"--kind pipedream":                                  "versions   at most 4, 3, 2, 1 of the weights",
		"--kind search --memory 3":                          "search: 4 devices",
		"--kind gpipe --cost F=0,B=0":                       "0.00% of a device's time\n",
		"--kind gpipe --cost F=1.3717,B=2.71828182845904":   "% of a device's time\n",
		"--kind interleaved --chunks 3 --microbatches 100 ": "drawn to scale",
	} {
		if strings.HasSuffix(args, "--microbatches 4") || args == "--kind pipedream" {
			args += " --stages 4"
		}
		if got := schedulePrinted(t, strings.Fields(args)...); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in\n%s", args, want, got)
		}
	}
}

// TestScheduleJSON compares the numbers with the library's, in units of a device's whole part whatever the chunks.
func TestScheduleJSON(t *testing.T) {
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindInterleaved, pipeline.KindPipeDream} {
		chunks := 0
		if kind.Chunked() {
			chunks = 3
		}
		s := must.Get(pipeline.NewSchedule(kind, 4, 12, chunks))(t)
		args := []string{"--kind", string(kind), "--microbatches", "12", "--chunks", fmt.Sprint(chunks)}
		r := scheduleJSON(t, args...)
		if r.Kind != string(kind) || r.Stages != 4 || r.Microbatches != 12 || r.Chunks*4 != max(len(s.Blocks), 4) ||
			r.Weights != s.Weights || r.Every != s.Every || !slices.Equal(r.PeakActivations, s.PeakActivations()) {
			t.Errorf("%q: %+v", args, r)
		}
		for i, n := range r.PeakActivations {
			if r.PeakMemory[i] != float64(n)/float64(r.Chunks) {
				t.Errorf("%q: memory %v of %v stages, of which %d are a part", args, r.PeakMemory[i], n, r.Chunks)
			}
		}
		idle, total, ok := pipeline.Bubble(kind, 4, 12, chunks)
		// Whoever computes has 3 a micro-batch.
		if want := 36 * float64(total) / float64(total-idle); ok && (math.Abs(r.StepTime-want) > 1e-12*want ||
			math.Abs(r.Bubble-float64(idle)/float64(total)) > 1e-12) {
			t.Errorf("%q: a step of %v with bubble %v, want %v and %d/%d", args, r.StepTime, r.Bubble, want, idle,
				total)
		}
	}
}

// TestScheduleSearch asks for less memory than the named kinds of this speed need, with chunks and without, at costs
// that differ.
func TestScheduleSearch(t *testing.T) {
	for cost, extra := range map[string]string{"F=1": "", "A=2:1:1:1": "--chunks 2", "F=1:2:1:1,K=0.5,U=1": ""} {
		r := scheduleJSON(t, strings.Fields("--kind search --memory 3.5 --cost "+cost+" "+extra)...)
		slow := scheduleJSON(t, "--kind", "naive", "--cost", cost)
		if slices.Max(r.PeakMemory) > 3.5 || !(r.StepTime < slow.StepTime/2) {
			t.Errorf("%s: memory %v, a step of %v, the naive one takes %v", cost, r.PeakMemory, r.StepTime,
				slow.StepTime)
		}
	}
}

// TestScheduleFiles reads back what is written, and leaves files of other kinds alone.
func TestScheduleFiles(t *testing.T) {
	dir := t.TempDir()
	csv, tr, page, text := filepath.Join(dir, "s.csv"), filepath.Join(dir, "s.json"), filepath.Join(dir, "s.html"),
		filepath.Join(dir, "s.txt")
	common := []string{"--kind", "zb-v", "--stages", "3", "--microbatches", "5"}
	for range 2 { // the second time over the first one's files
		schedulePrinted(t, append(common, "--csv", csv, "--trace", tr, "--chart", page)...)
	}
	s, err := pipeline.ZBV(3, 5)
	must.Do(t, err)
	writeFile(t, text, s.String())
	want := schedulePrinted(t, common...)
	for _, path := range []string{csv, text} {
		if got := schedulePrinted(t, "--read", path); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
		}
	}
	printed := schedulePrinted(t, append(common, "--csv", "-")...)
	if got, err := runSchedule(printed, "--read", "-"); err != nil || got != want {
		t.Errorf("from the standard input: error %v, got\n%s", err, got)
	}
	file := must.Get(os.Open(tr))(t)
	defer file.Close()
	spans, err := trace.ReadChrome(file)
	if err != nil || len(spans.Spans) != 2*3*5*3 || spans.Spans[0].Name != "0F0" ||
		spans.Spans[0].End != time.Millisecond/2 {
		t.Errorf("the trace has %d spans, error %v", len(spans.Spans), err)
	}
	html, err := os.ReadFile(page)
	if err != nil || strings.Count(string(html), "<img ") != 2 || !strings.Contains(string(html),
		"<title>zb-v, 3 devices, 5 micro-batches</title>") {
		t.Errorf("the page has %d images, error %v", strings.Count(string(html), "<img "), err)
	}
	for flag, path := range map[string]string{"--csv": page, "--trace": csv, "--chart": tr} {
		before := readFile(t, path)
		if _, err := runSchedule("", append(common, flag, path)...); err == nil || !strings.Contains(err.Error(),
			flag) || !strings.Contains(err.Error(), "choose another file") {
			t.Errorf("%s over %s: error %v", flag, path, err)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != before {
			t.Errorf("%s has changed %s", flag, path)
		}
	}
}

// TestSchedulePlans reads any plan, in both forms: what step writes, and what it reads though nobody wrote it so.
func TestSchedulePlans(t *testing.T) {
	sharded := must.Get(zero.Options{Stage: 3, Prefetch: 1}.Plan(toyRecipe(), 2))(t)
	asynchronous := must.Get(pipeline.TwoBW(2, 4, 2))(t)
	for _, p := range []*step.Plan{sharded, asynchronous} {
		var csv bytes.Buffer
		must.Do(t, p.WriteCSV(&csv))
		want, err := runSchedule(p.String(), "--read", "-")
		if err != nil || !strings.HasPrefix(want, p.Name+": ") {
			t.Fatalf("%s as text: error %v, printed\n%s", p.Name, err, want)
		}
		for form, text := range map[string]string{"CSV": csv.String(),
			"text with a comment": "\n # by hand\n" + p.String()} {
			if got, err := runSchedule(text, "--read", "-"); err != nil || got != want {
				t.Errorf("%s as %s: error %v, got\n%s\nwant\n%s", p.Name, form, err, got, want)
			}
		}
	}
	for form, text := range map[string]string{"short text": "schedule 1f1b\nrank 0: 0F0 0B0 0U0",
		"PyTorch's CSV": "0F0,,0B0"} {
		if got, err := runSchedule(text, "--read", "-"); err != nil || !strings.Contains(got, "1 micro-batches") {
			t.Errorf("%s: error %v, got\n%s", form, err, got)
		}
	}
}
