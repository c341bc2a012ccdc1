package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"
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

	// Samples are the times in milliseconds, one a round.
	Samples sampleTimes `json:"samples_ms,omitempty"`

	// Of an implementation with a base, named by Over: the median of its time over the base's in the same round, and
	// its least time over the base's least. The ratios below are then of costs, not of times.
	Over    string  `json:"over,omitempty"`
	Cost    float64 `json:"cost,omitempty"`
	MinCost float64 `json:"min_cost,omitempty"`

	// Of ours, if peers were measured: the best peer's time over ours in the same round, its median and its least; and
	// the best peer's least time over our least. Best is the peer with the least median. Of a peer or variant, if any
	// of ours was measured: its time over that of the best of ours, likewise.
	Ratio    float64 `json:"ratio,omitempty"`
	RatioMin float64 `json:"ratio_min,omitempty"`
	MinRatio float64 `json:"min_ratio,omitempty"`
	Best     string  `json:"best_peer,omitempty"`

	// Of ours, if there is a limit: its time over ours in the same round, the median.
	OfLimit float64 `json:"of_limit,omitempty"`

	details

	// Values are those of facts, in which all implementations agree within the case's bounds.
	Values []float64 `json:"values,omitempty"`

	// Of training: see facts. The ratio is theirs over ours, against the implementation of the other side that takes
	// least.
	FirstMS    float64 `json:"first_ms,omitempty"`
	FirstRatio float64 `json:"first_ratio,omitempty"`

	// Of benchmarks that measure memory. The ratios are theirs over ours, of the temporary memory and of all that is
	// planned, against the compiled implementation of the other side that needs least.
	footprint
	TempRatio   float64 `json:"temp_ratio,omitempty"`
	MemoryRatio float64 `json:"memory_ratio,omitempty"`

	// Load1 is the machine's load average when the case was done.
	Load1 float64 `json:"load1"`
}

// details are what a case adds to a record.
type details struct {
	// Of benchmarks of several operations.
	Op string `json:"op,omitempty"`

	// Of benchmarks of attention.
	Tokens int `json:"tokens,omitempty"`

	// Of training on tokens: those of a step over its median time.
	TokensPerSecond float64 `json:"tokens_per_s,omitempty"`

	// Of a GPU: the FLOPs of a step's matmuls over its median time, in 10¹² a second, and as a part of the GPU's peak.
	// MFU counts all scores of attention, CausalMFU and, of attention by itself, TFLOPS those that the mask leaves.
	TFLOPS    float64 `json:"tflops,omitempty"`
	MFU       float64 `json:"mfu,omitempty"`
	CausalMFU float64 `json:"causal_mfu,omitempty"`

	// Of stacks of equal blocks: the number of blocks, the size of one's weights, and
	// that of a device's shard of all gradients.
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
	*benchmark
	settings
	outcome
	lines io.Writer // for JSON
}

func newReport(b *benchmark, s settings) *report {
	r := &report{benchmark: b, settings: s, lines: io.Discard}
	r.Bench, r.Versions = b.name, map[string]versions{}
	if s.json {
		r.lines = os.Stdout
	}
	return r
}

// begin notes the state of the machine before the first process is started, and says on what the lines are that follow
// in the file of --out.
func (r *report) begin(ctx context.Context) error {
	r.Date, r.Load1 = time.Now().UTC().Truncate(time.Second), load1()
	r.Machine = thisMachine(ctx)
	if r.out == "" {
		return nil
	}
	file, err := os.OpenFile(r.out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) // open until the program ends
	if err == nil {
		err = json.NewEncoder(file).Encode(r.outcome)
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	r.lines = io.MultiWriter(r.lines, file)
	return nil
}

// note notes the versions of workers.
func (r *report) note(workers []*worker) {
	for _, w := range workers {
		r.Versions[w.name] = w.versions
	}
}

// add reports a case.
func (r *report) add(c testCase, results []result) error {
	records := compare(r.name, c, results)
	err := r.write(records)
	r.Records = append(r.Records, records...)
	return err
}

// write writes records as lines of JSON, with the load.
func (r *report) write(records []record) error {
	out, load := json.NewEncoder(r.lines), load1()
	for i := range records {
		records[i].Load1 = load
		if err := out.Encode(records[i]); err != nil {
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

// finish shows what was measured, which is not all if the run ended with an error, and returns that error. Files are
// written of a complete run only.
func (r *report) finish(ended error) error {
	if ended != nil && len(r.Records) == 0 {
		return ended
	}
	heading := r.heading()
	if ended != nil {
		ended = fmt.Errorf("the results are partial, and not saved: %w", ended)
		last := r.Records[len(r.Records)-1]
		heading = fmt.Sprintf("PARTIAL: the run ended early. The last case is %s, of %d rounds.\n%s", last.Case,
			last.Rounds, heading)
	}
	out := os.Stdout
	if r.json {
		out = os.Stderr
		fmt.Fprintln(out, heading)
	} else {
		fmt.Fprintf(out, "%s\n\n%s", heading, tableText(r.Records))
	}
	if r.targets != nil {
		for _, t := range r.targets(r.Records) {
			fmt.Fprintln(out, t)
		}
	}
	if ended != nil {
		return ended
	}
	if r.save != "" {
		path := filepath.Join(r.save, r.fileName())
		if err := r.outcome.write(path); err != nil {
			return fmt.Errorf("--save: %w", err)
		}
		fmt.Fprintf(os.Stderr, "bench: wrote %s\n", path)
	}
	return nil
}
