package trace_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/trace"
)

// A training loop whose steps 4 and 5 are recorded, as in the schedule's example.
func ExampleProfiler() {
	p, err := trace.NewProfiler(trace.Schedule{Wait: 1, WarmUp: 3, Active: 2, Repeat: 1}, func(w trace.Window) error {
		fmt.Println("steps", w.First, "to", w.Last)
		for _, row := range w.Table() {
			fmt.Println(row.Calls, row.Name)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	defer p.Close()
	for range 10 {
		end := p.Recorder().Start(0, trace.Compute, "forward and backward")
		end()
		if err := p.Step(); err != nil {
			panic(err)
		}
	}
	// Output:
	// steps 4 to 5
	// 2 forward and backward
}

// For every small schedule and length of a run, the windows have the steps that the schedule records, and no others.
func TestWindows(t *testing.T) {
	for n := range 3 * 3 * 3 * 3 {
		s := trace.Schedule{Wait: n % 3, WarmUp: n / 3 % 3, Active: 1 + n/9%3, Repeat: n / 27}
		for steps := range 13 {
			var want, got []string
			window := ""
			for step := range steps {
				switch state := s.State(step); state {
				case trace.Recording, trace.Saving:
					window += fmt.Sprint(step, " ")
					if state == trace.Saving {
						want, window = append(want, window), ""
					}
				}
			}
			if window != "" { // cut short by the end
				want = append(want, window)
			}
			p := must.Get(trace.NewProfiler(s, func(w trace.Window) error {
				text := ""
				for _, span := range w.Spans {
					text += span.Name + " "
					if span.Start < 0 {
						t.Errorf("%+v: %+v starts before its window", s, span)
					}
				}
				if len(w.Counters) != w.Last-w.First+1 || !strings.HasPrefix(text, fmt.Sprint(w.First)) ||
					!strings.HasSuffix(text, fmt.Sprint(w.Last, " ")) {
					t.Errorf("%+v: the window of %d to %d has %q and %d counters", s, w.First, w.Last, text,
						len(w.Counters))
				}
				got = append(got, text)
				return nil
			}))(t)
			for step := range steps {
				end := p.Recorder().Start(0, trace.Compute, fmt.Sprint(step))
				p.Recorder().Count(0, "step", int64(step))
				end()
				must.Do(t, p.Step())
			}
			must.Do(t, errors.Join(p.Close(), p.Close()))
			if !slices.Equal(got, want) {
				t.Fatalf("%+v over %d steps: windows %q, want %q", s, steps, got, want)
			}
		}
	}
}

func TestProfilerErrors(t *testing.T) {
	ready := func(trace.Window) error { return nil }
	for _, s := range []trace.Schedule{
		{}, {Wait: -1, Active: 1}, {WarmUp: -1, Active: 1}, {Active: -1}, {Active: 1, Repeat: -1},
		{Active: 1, Wait: 1 << 30},
	} {
		if _, err := trace.NewProfiler(s, ready); err == nil || !strings.Contains(err.Error(), "trace: a schedule") {
			t.Errorf("%+v: error %v", s, err)
		}
	}
	if _, err := trace.NewProfiler(trace.Schedule{Active: 1}, nil); err == nil {
		t.Error("no error without a function")
	}
	full := errors.New("full")
	p := must.Get(trace.NewProfiler(trace.Schedule{Active: 2}, func(trace.Window) error { return full }))(t)
	for step, want := range []error{nil, full, nil} {
		if err := p.Step(); err != want {
			t.Errorf("step %d: error %v, want %v", step, err, want)
		}
	}
	if err := p.Close(); err != full {
		t.Errorf("Close: error %v", err)
	}
	if err := p.Step(); err == nil {
		t.Error("no error of Step after Close")
	}
	var off *trace.Profiler
	if err := errors.Join(off.Step(), off.Close()); err != nil || off.Recorder() != nil {
		t.Errorf("a nil profiler: error %v, recorder %v", err, off.Recorder())
	}
}
