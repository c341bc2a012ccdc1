package main

import (
	"fmt"
	"io"
	"os"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/trace"
)

// tracedSteps is how many steps are traced: the last ones of a run.
const tracedSteps = 3

// tracer records the last steps of a run, before and after which all ranks pause; nil records nothing.
type tracer struct {
	file  *os.File
	rec   *trace.Recorder
	first int           // traced step, from 0; the one before is recorded and dropped
	base  map[int]int64 // by rank: bytes communicated before it
}

// openTrace opens the file to write. A file that has something other than a trace in it is an error.
func openTrace(path string) (*tracer, error) {
	if path == "" {
		return nil, nil
	}
	file, err := userfile.Edit(path, 0, maxReplaced)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	if info, err := file.Stat(); err == nil && info.Size() > 0 {
		if old, err := trace.ReadChrome(file); err != nil || len(old.Spans)+len(old.Counters) == 0 {
			file.Close()
			return nil, fmt.Errorf("--trace: %s exists and is not a trace: choose another file", path)
		}
	}
	t := &tracer{file: file, rec: trace.New()}
	t.rec.Pause()
	return t, nil
}

func (t *tracer) recorder() *trace.Recorder {
	if t == nil {
		return nil
	}
	return t.rec
}

// plan says at which step the run begins, and at which it is to end.
func (t *tracer) plan(began, end int) {
	if t != nil {
		t.first = max(began, end-tracedSteps)
	}
}

// next is the step before which the run is to pause, after step and at most until.
func (t *tracer) next(step, until int) int {
	if t == nil {
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
	case t == nil:
	case step == t.first-1:
		t.rec.Resume()
	case step == t.first:
		t.base = communicated(t.rec.Take())
		t.rec.Resume()
	}
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
	idle    float64 // see idle
}

// write writes the trace of a run that has done a number of steps; nil if none of these was traced.
func (t *tracer) write(step int) (*traceResult, error) {
	if t == nil || step <= t.first {
		return nil, nil
	}
	t.rec.Pause()
	all := t.rec.Take()
	r := &traceResult{File: t.file.Name(), Steps: step - t.first, idle: idle(all)}
	sums, ranks := communicated(all), ranksOf(all)
	for rank := range ranks {
		r.Bytes += (sums[rank] - t.base[rank]) / int64(r.Steps*len(ranks))
		var communication []trace.Span
		for _, stream := range []string{trace.Reduce, trace.Send, trace.Gather} {
			communication = append(communication, trace.Of(all.Spans, rank, stream)...)
		}
		r.Overlap += trace.Overlap(communication, trace.Of(all.Spans, rank, trace.Compute)) / float64(len(ranks))
	}
	begin, _ := all.Range()
	err := t.file.Truncate(0)
	if err == nil {
		_, err = t.file.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = all.Shift(-begin).WriteChrome(t.file)
	}
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	return r, nil
}

func (t *tracer) close() {
	if t != nil {
		t.file.Close()
	}
}
