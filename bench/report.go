package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/chart"
)

// Files in the folder that --out names.
const (
	linesFile = "results.jsonl"
	pageFile  = "charts.html"
)

// record is one line of JSON: what one implementation took for one case.
type record struct {
	Bench    string  `json:"bench"`
	Case     string  `json:"case"`
	Impl     string  `json:"impl"`
	Role     role    `json:"role"`
	Class    string  `json:"class,omitempty"`
	MinMS    float64 `json:"min_ms"`
	MedianMS float64 `json:"median_ms"`
	Rounds   int     `json:"rounds"`

	// Samples are the times in milliseconds, one a round, of which all else is made.
	Samples sampleTimes `json:"samples_ms,omitempty"`

	// Where an implementation has a base, named by Over: the median of its time over
	// the base's in the same round, and its least time over the base's least. The
	// ratios below are then of costs, not of times.
	Over    string  `json:"over,omitempty"`
	Cost    float64 `json:"cost,omitempty"`
	MinCost float64 `json:"min_cost,omitempty"`

	// On our lines, where peers were measured: the best peer's time over ours in
	// the same round, its median and its least; and the best peer's least time over
	// our least. Best is the peer with the least median. On a peer's line or a variant's,
	// where any of ours was measured: its time over that of the best of ours, likewise.
	Ratio    float64 `json:"ratio,omitempty"`
	RatioMin float64 `json:"ratio_min,omitempty"`
	MinRatio float64 `json:"min_ratio,omitempty"`
	Best     string  `json:"best_peer,omitempty"`

	// On our lines, where there is a limit: its time over ours in the same round,
	// the median.
	OfLimit float64 `json:"of_limit,omitempty"`

	details

	// Of benchmarks that know their memory. The ratios are theirs over ours, of the
	// temporary memory and of all that is planned, against the leanest compiled
	// implementation of the other side.
	footprint
	TempRatio   float64 `json:"temp_ratio,omitempty"`
	MemoryRatio float64 `json:"memory_ratio,omitempty"`

	// Load1 is the machine's load average when the case was done.
	Load1 float64 `json:"load1"`
}

// details are what a case has to say about a record.
type details struct {
	// Of benchmarks of several operations.
	Op string `json:"op,omitempty"`

	// Of benchmarks of attention.
	Tokens int `json:"tokens,omitempty"`

	// Of stacks of equal blocks: how many, the size of one's weights, and that of a
	// device's part of all gradients.
	Depth         int   `json:"depth,omitempty"`
	BlockBytes    int64 `json:"block_bytes,omitempty"`
	GradientBytes int64 `json:"gradient_bytes,omitempty"`

	// Of benchmarks that move data; the bandwidths are of the median time.
	Bytes int64   `json:"bytes,omitempty"`
	Ranks int     `json:"ranks,omitempty"`
	AlgBW float64 `json:"algbw_GBs,omitempty"`
	BusBW float64 `json:"busbw_GBs,omitempty"`
}

// report collects what a run measures, and shows it.
type report struct {
	benchmark
	outcome
	json  bool
	out   string // folder; "" for none
	saved string // folder; "" for none
	lines io.Writer
	file  *os.File
}

func newReport(b benchmark, asJSON bool, out string) (*report, error) {
	r := &report{benchmark: b, json: asJSON, out: out, lines: io.Discard}
	r.Bench, r.Versions = b.name(), map[string]versions{}
	if asJSON {
		r.lines = os.Stdout
	}
	if out == "" {
		return r, nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	var err error
	if r.file, err = os.Create(filepath.Join(out, linesFile)); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	r.lines = io.MultiWriter(r.lines, r.file)
	return r, nil
}

// begin notes what is there before the first process is started.
func (r *report) begin(ctx context.Context) {
	r.Date, r.Load1 = time.Now().UTC().Truncate(time.Second), load1()
	r.Machine = thisMachine(ctx)
}

// add reports a case.
func (r *report) add(c testCase, results []result) error {
	out := json.NewEncoder(r.lines)
	load := load1()
	for _, rec := range compare(r.name(), c, results) {
		rec.Load1 = load
		r.Records = append(r.Records, rec)
		if err := out.Encode(rec); err != nil {
			return err
		}
	}
	return nil
}

// round keeps four digits.
func round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// load1 is the load average of the last minute, or 0 where the system does not say.
func load1() (load float64) {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Sscan(string(text), &load)
	}
	return load
}

// finish shows what was measured, which is not all where the run ended by an error, and returns that error.
func (r *report) finish(ended error) error {
	if r.file != nil {
		defer r.file.Close()
	}
	if ended != nil && len(r.Records) == 0 {
		return ended
	}
	heading := r.heading()
	if ended != nil {
		ended = fmt.Errorf("the results are partial, and not saved: %w", ended)
		last := r.Records[len(r.Records)-1]
		heading = fmt.Sprintf("PARTIAL: the run ended early. The last case is %s, of %d rounds.\n%s", last.Case, last.Rounds, heading)
	}
	charts := r.charts(r.Records)
	if r.json {
		fmt.Fprintln(os.Stderr, heading)
	} else {
		fmt.Printf("%s\n%s", heading, ratioText(r.Records))
		for _, c := range charts {
			fmt.Printf("\n%s", c.Text())
		}
	}
	return errors.Join(ended, r.write(heading, charts, ended == nil))
}

// write writes the files that were asked for; results are saved of a complete run only.
func (r *report) write(heading string, charts []*chart.Chart, complete bool) error {
	if complete && r.saved != "" {
		path, err := r.save(r.saved)
		if err != nil {
			return fmt.Errorf("--save: %w", err)
		}
		fmt.Fprintf(os.Stderr, "bench: wrote %s\n", path)
	}
	if r.out == "" {
		return nil
	}
	path := filepath.Join(r.out, pageFile)
	if err := writePage(path, r.about(), heading, r.Records, charts); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	fmt.Fprintf(os.Stderr, "bench: wrote %s and %s\n", filepath.Join(r.out, linesFile), path)
	return nil
}

func timed(records []record) bool {
	return slices.ContainsFunc(records, func(r record) bool { return r.Rounds > 0 })
}

// ratioTable has a row a case, and in it our implementations' ratios. There is none where no times were taken.
func ratioTable(records []record) (table, bool) {
	if !timed(records) {
		return table{}, false
	}
	title := "How many times as fast as the best peer: median (least) of the rounds; % of the limit."
	if slices.ContainsFunc(records, func(r record) bool { return r.Over != "" }) {
		title = "The best peer's cost over ours: median (least) of the rounds; % of the limit."
	}
	ratios := func(r record) string { return strings.TrimSpace(ratioCell(r) + " " + limitCell(r)) }
	t := pivot(title, records, ratios, ours)
	best := pivot("", records, func(r record) string { return r.Best }, ours)
	loads := pivot("", records, func(r record) string { return fmt.Sprintf("%.1f", r.Load1) }, ours)
	t.header = slices.Insert(append(t.header, "load"), 1, "best peer")
	for i, row := range t.rows {
		t.rows[i] = slices.Insert(append(row, said(loads.rows[i])), 1, said(best.rows[i]))
	}
	return t, true
}

func ratioText(records []record) string {
	t, ok := ratioTable(records)
	if !ok {
		return ""
	}
	return "\n" + t.text()
}

func ratioCell(r record) string {
	if r.Ratio == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f)", r.Ratio, r.RatioMin)
}

func limitCell(r record) string {
	if r.OfLimit == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*r.OfLimit)
}

// writePage writes a page that needs no network.
func writePage(path, title, heading string, records []record, charts []*chart.Chart) error {
	var page strings.Builder
	fmt.Fprintf(&page, "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>%s</title>\n<h1>%[1]s</h1>\n", html.EscapeString(title))
	page.WriteString(chart.Loader())
	for _, c := range charts {
		fragment, err := c.HTML()
		if err != nil {
			return err
		}
		page.WriteString(fragment + "\n")
	}
	fmt.Fprintf(&page, "<pre>%s\n%s</pre>\n", html.EscapeString(heading), html.EscapeString(ratioText(records)))
	return os.WriteFile(path, []byte(page.String()), 0o644)
}
