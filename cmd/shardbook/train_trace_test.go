package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xplane"
)

// A profile of the devices joins the trace of the steps, and no error of the profiler ends a run.
func TestTracerProfiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	late, broken := errors.New("late"), errors.New("broken")
	for _, c := range []struct {
		name     string
		step     int
		profiler fakeProfiler
		fails    error
		kernels  int
		problem  string
	}{
		{"before the traced steps", 0, fakeProfiler{}, nil, 0, ""},
		{"traced", 1, fakeProfiler{}, nil, 1, "events dropped"},
		{"without a profiler", 1, fakeProfiler{before: xla.ErrNoProfiler}, nil, 0, ""},
		{"a profiler that does not start", 1, fakeProfiler{before: late}, nil, 0, "late"},
		{"a profiler that does not stop", 1, fakeProfiler{after: late}, nil, 0, "late"},
		{"a run that fails", 1, fakeProfiler{}, broken, 0, ""},
		{"a run that fails without a profiler", 1, fakeProfiler{before: xla.ErrNoProfiler}, broken, 0, ""},
	} {
		tr := must.Get(openTrace(path))(t)
		tr.first = 1
		tr.rec.Resume()
		c.profiler.at = tr.rec.Began().Add(time.Millisecond)
		ran := 0
		err := tr.record(c.profiler, c.step, func() error {
			tr.rec.Start(0, trace.Compute, "step")()
			ran++
			return c.fails
		})
		if ran != 1 || err != c.fails {
			t.Errorf("%s: it ran %d times, error %v", c.name, ran, err)
		}
		r := must.Get(tr.write(2))(t)
		must.Do(t, tr.file.Close())
		read := must.Get(trace.ReadChrome(bytes.NewReader(must.Get(os.ReadFile(path))(t))))(t)
		if r.Kernels != c.kernels || r.Problem != c.problem || len(read.Spans) != 1+2*c.kernels {
			t.Errorf("%s: %+v, and the file has %+v", c.name, r, read.Spans)
		}
		if launches := read.Launches(); len(launches) != c.kernels {
			t.Errorf("%s: launches %+v", c.name, launches)
		}
	}
}

// fakeProfiler records a kernel and its launch, and fails before or after the function that it profiles.
type fakeProfiler struct {
	at            time.Time
	before, after error
}

func (p fakeProfiler) Profile(f func() error) (*xplane.Profile, error) {
	if p.before != nil {
		return nil, p.before
	}
	if err := f(); err != nil {
		return nil, err
	}
	return &xplane.Profile{Warnings: []string{"events\ndropped"}, Events: []xplane.Event{
		{Host: true, Line: "main", Name: "cuLaunchKernel", Start: p.at, Duration: 1, Correlation: 1},
		{Line: "Stream #7", Name: "kernel", Start: p.at.Add(5), Duration: 3, Correlation: 1}}}, p.after
}
