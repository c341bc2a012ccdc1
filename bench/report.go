package main

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

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
	MinMS    float64 `json:"min_ms"`
	MedianMS float64 `json:"median_ms"`
	Rounds   int     `json:"rounds"`

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

	// Of benchmarks that know their memory. The ratios are theirs over ours, of the
	// temporary memory and of all that is planned, against the leanest compiled
	// implementation of the other side.
	footprint
	TempRatio   float64 `json:"temp_ratio,omitempty"`
	MemoryRatio float64 `json:"memory_ratio,omitempty"`

	// Load1 is the machine's load average when the case was done.
	Load1 float64 `json:"load1"`
}

// report collects a run's records and shows them.
type report struct {
	benchmark
	json    bool
	out     string // folder; "" for none
	lines   io.Writer
	file    *os.File
	records []record
}

func newReport(b benchmark, asJSON bool, out string) (*report, error) {
	r := &report{benchmark: b, json: asJSON, out: out, lines: io.Discard}
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

// add reports a case.
func (r *report) add(c testCase, results []result) error {
	out := json.NewEncoder(r.lines)
	for _, rec := range compare(r.name(), c, results) {
		r.records = append(r.records, rec)
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

// finish shows the whole.
func (r *report) finish() error {
	charts := r.charts(r.records)
	if !r.json {
		fmt.Print(ratioTable(r.records))
		for _, c := range charts {
			fmt.Printf("\n%s", c.Text())
		}
	}
	if r.out == "" {
		return nil
	}
	path := filepath.Join(r.out, pageFile)
	err := writePage(path, r.about(), r.records, charts)
	if err == nil {
		err = r.file.Close()
	}
	if err == nil {
		fmt.Fprintf(os.Stderr, "bench: wrote %s and %s\n", filepath.Join(r.out, linesFile), path)
	}
	return err
}

// ratioTable has a row a case, and in it our implementations' ratios. It is "" where no
// times were taken.
func ratioTable(records []record) string {
	if !slices.ContainsFunc(records, func(r record) bool { return r.Rounds > 0 }) {
		return ""
	}
	var columns []string // our implementations
	rows := map[string]map[string]record{}
	var cases []string
	for _, r := range records {
		if r.Role != ours {
			continue
		}
		if !slices.Contains(columns, r.Impl) {
			columns = append(columns, r.Impl)
		}
		if rows[r.Case] == nil {
			rows[r.Case] = map[string]record{}
			cases = append(cases, r.Case)
		}
		rows[r.Case][r.Impl] = r
	}
	var text strings.Builder
	title := "How many times as fast as the best peer"
	if slices.ContainsFunc(records, func(r record) bool { return r.Over != "" }) {
		title = "The best peer's cost over ours"
	}
	text.WriteString(title + ": median (least) of the rounds; % of the limit.\n\n")
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "case\tbest peer\t%s\tload\n", strings.Join(columns, "\t"))
	for _, name := range cases {
		cells := []string{name, "–"}
		load := 0.0
		for _, column := range columns {
			r, ok := rows[name][column]
			cell := "–"
			if ok {
				cell = strings.TrimSpace(ratioCell(r) + " " + limitCell(r))
				load = r.Load1
				if r.Best != "" {
					cells[1] = r.Best
				}
			}
			cells = append(cells, cell)
		}
		fmt.Fprintf(w, "%s\t%.1f\n", strings.Join(cells, "\t"), load)
	}
	w.Flush()
	return text.String()
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
func writePage(path, title string, records []record, charts []*chart.Chart) error {
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
	fmt.Fprintf(&page, "<pre>%s</pre>\n", html.EscapeString(ratioTable(records)))
	return os.WriteFile(path, []byte(page.String()), 0o644)
}
