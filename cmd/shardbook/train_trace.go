package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xplane"
)

// tracedSteps is how many steps are traced: the last ones of a run.
const tracedSteps = 3

// tracer records the last steps of a run, before and after which all ranks pause; without a recorder nothing.
type tracer struct {
	file  *os.File
	rec   *trace.Recorder
	first int           // traced step, from 0; the one before is recorded and dropped
	base  map[int]int64 // by rank: bytes communicated before it

	profiles []*xplane.Profile // of the traced steps, if the devices have a profiler
	problem  error             // of the profiler
}

// openTrace opens the file to write. A file that has something other than a trace in it is an error.
func openTrace(path string) (*tracer, error) {
	if path == "" {
		return &tracer{}, nil
	}
	file, err := userfile.Edit(path, 0, maxReplaced)
	if err != nil {
		return &tracer{}, inFlag("trace", err)
	}
	if info, err := file.Stat(); err == nil && info.Size() > 0 && !isTrace(file) {
		file.Close()
		return &tracer{}, fmt.Errorf("--trace: %s exists and is not a trace: choose another file", path)
	}
	t := &tracer{file: file, rec: trace.New()}
	t.rec.Pause()
	return t, nil
}

// plan says at which step the run begins, and at which it is to end.
func (t *tracer) plan(began, end int) { t.first = max(began, end-tracedSteps) }

// next is the step before which the run is to pause, after step and at most until.
func (t *tracer) next(step, until int) int {
	if t.rec == nil {
		return until
	}
	for _, stop := range []int{t.first - 1, t.first} {
		if step < stop {
			return min(stop, until)
		}
	}
	return until
}

// at says that the run pauses before a step.
func (t *tracer) at(step int) {
	switch {
	case t.rec == nil:
	case step == t.first-1:
		t.rec.Resume()
	case step == t.first:
		t.base = communicated(t.rec.Take())
		t.rec.Resume()
	}
}

// profiler is an xla.Backend.
type profiler interface {
	Profile(f func() error) (*xplane.Profile, error)
}

// record has f do the steps after step. If they are traced, and the devices have a profiler, it also records what the
// devices do. An error of the profiler does not end the run.
func (t *tracer) record(p profiler, step int, f func() error) error {
	if t.rec == nil || step < t.first {
		return f()
	}
	var failed error
	ran := false
	profile, err := p.Profile(func() error {
		ran, failed = true, f()
		return failed
	})
	if !ran {
		failed = f()
	}
	switch {
	case err == nil:
		t.profiles = append(t.profiles, profile)
	case failed == nil && !errors.Is(err, xla.ErrNoProfiler):
		t.problem = err
	}
	return failed
}

// communicated is the number of bytes that each rank has communicated.
func communicated(tr trace.Trace) map[int]int64 {
	bytes := map[int]int64{}
	for _, c := range tr.Counters {
		if c.Name == "bytes communicated" {
			bytes[c.Rank] = c.Value
		}
	}
	return bytes
}

// ranksOf are the ranks that have spans.
func ranksOf(tr trace.Trace) map[int]bool {
	ranks := map[int]bool{}
	for _, s := range tr.Spans {
		ranks[s.Rank] = true
	}
	return ranks
}

// traceResult summarizes a trace.
type traceResult struct {
	File  string `json:"file"`
	Steps int    `json:"steps"` // in the trace
	// mean number of bytes that a rank sends in a step; 0 if it is not known
	Bytes int64 `json:"bytes_communicated,omitempty"`
	// fraction of communication during which the rank computed
	Overlap float64 `json:"overlap"`
	// kernels and copies on the devices, if they have a profiler
	Kernels int `json:"kernels,omitempty"`
	// what kept the profiler from recording all
	Problem string  `json:"problem,omitempty"`
	idle    float64 // see idle
	ranks   int     // with spans of their own; 0 if all devices run one program
}

// write writes the trace of a run that has done a number of steps; nil if none of these was traced.
func (t *tracer) write(step int) (*traceResult, error) {
	if t.rec == nil || step <= t.first {
		return nil, nil
	}
	t.rec.Pause()
	all := t.rec.Take()
	r := &traceResult{File: t.file.Name(), Steps: step - t.first, idle: idle(all)}
	sums, ranks := communicated(all), ranksOf(all)
	r.ranks = len(ranks)
	for rank := range ranks {
		r.Bytes += (sums[rank] - t.base[rank]) / int64(r.Steps*len(ranks))
		var communication []trace.Span
		for _, stream := range []string{trace.Reduce, trace.Send, trace.Gather} {
			communication = append(communication, trace.Of(all.Spans, rank, stream)...)
		}
		r.Overlap += trace.Overlap(communication, trace.Of(all.Spans, rank, trace.Compute)) / float64(len(ranks))
	}
	for _, p := range t.profiles {
		on := trace.FromProfile(p, t.rec.Began())
		all = all.With(on)
		r.Kernels += len(on.Filter(func(s trace.Span) bool { return s.Rank != trace.Host }).Spans)
		for _, warning := range p.Warnings {
			t.problem = errors.Join(t.problem, errors.New(warning))
		}
	}
	if t.problem != nil {
		r.Problem = strings.Join(strings.Fields(t.problem.Error()), " ")
	}
	begin, _ := all.Range()
	err := t.file.Truncate(0)
	if err == nil {
		_, err = t.file.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = all.Shift(-begin).WriteChrome(t.file)
	}
	return r, inFlag("trace", err)
}

// pipeResult is what --json prints of a pipeline.
type pipeResult struct {
	Schedule     string `json:"schedule"`
	Ranks        int    `json:"ranks"`
	Stages       int    `json:"stages"`
	Microbatches int    `json:"microbatches"`
	Cut          []int  `json:"cut"` // blocks of each stage
	// Bubble is the fraction of a step in which a rank is idle, if the forward pass and both parts of the backward pass
	// took equally long.
	Bubble float64 `json:"bubble"`
	// Idle is the mean fraction of the traced time in which a rank was idle; nil without a trace.
	Idle *float64 `json:"idle,omitempty"`
	// PeakActivations is, for each rank, the largest number of micro-batches whose activations it holds at once,
	// counted once for each of its stages.
	PeakActivations []int `json:"peak_activations,omitempty"`
}

// pipelineResult describes the pipelines of the run; nil if there are none.
func (t *training) pipelineResult() (*pipeResult, error) {
	if t.job.Parallel.Pipe == 0 {
		return nil, nil
	}
	s, cut := t.run.plan.Layout().Plan, t.run.plan.Layout().Cut
	r := &pipeResult{Schedule: s.Name, Ranks: len(s.Ranks), Stages: len(s.Blocks), Microbatches: s.Micro, Cut: cut,
		PeakActivations: s.PeakActivations()}
	timeline, err := s.Simulate(step.Equal())
	if err != nil {
		return nil, err
	}
	r.Bubble = timeline.Bubble
	if t.traced != nil {
		r.Idle = &t.traced.idle
	}
	return r, nil
}

// print writes the result as text.
func (r *pipeResult) print(out io.Writer) {
	if r == nil {
		return
	}
	fmt.Fprintf(out, "pipeline      %s on %d devices, %d micro-batches, stages of %s blocks\n",
		r.Schedule, r.Ranks, r.Microbatches, join(r.Cut))
	fmt.Fprintf(out, "bubble        %.0f%% of a step if all passes took equally long", 100*r.Bubble)
	if r.Idle != nil {
		fmt.Fprintf(out, "; in the trace ranks were idle for %.0f%% of the time", 100**r.Idle)
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "activations   of at most %s micro-batches are saved at once on device 0, 1, …\n",
		join(r.PeakActivations))
}

// idle is the mean fraction of a trace's time in which a rank waited, had not begun or had ended.
func idle(tr trace.Trace) float64 {
	begin, end := tr.Range()
	ranks := ranksOf(tr)
	var nothing time.Duration
	for rank := range ranks {
		var own trace.Trace
		for _, s := range tr.Spans {
			if s.Rank == rank {
				own.Spans = append(own.Spans, s)
			}
		}
		first, last := own.Range()
		nothing += first - begin + end - last + trace.Busy(trace.Of(own.Spans, rank, trace.Wait))
	}
	all := time.Duration(len(ranks)) * (end - begin)
	if all == 0 {
		return 0
	}
	return float64(nothing) / float64(all)
}
