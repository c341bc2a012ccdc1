package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// ReadChrome reads a trace that [Trace.WriteChrome] or another program wrote in Chrome's trace event format: an object
// with the events, or a list of events. It reads complete events (phase X) and counters; other events are ignored.
// Process ids must be integers and become ranks; a thread becomes a stream, named after the thread or else its id.
// Times are rounded to nanoseconds, without error up to three weeks.
//
// It is an error if the text is not JSON of that form, or if a time or a count is missing or too large.
func ReadChrome(r io.Reader) (Trace, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Trace{}, fmt.Errorf("trace: reading events: %w", err)
	}
	var file struct {
		Events []foreignEvent `json:"traceEvents"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		err = json.Unmarshal(data, &file.Events)
	} else {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return Trace{}, fmt.Errorf("trace: not in Chrome's trace event format: %w", err)
	}
	var t Trace
	names := threadNames(file.Events)
	for i, e := range file.Events {
		if err := t.add(e, names); err != nil {
			return Trace{}, fmt.Errorf("trace: event %d, %q: %w", i, e.Name, err)
		}
	}
	sortSpans(t.Spans)
	sortCounters(t.Counters)
	return t, nil
}

// foreignEvent is an event whose fields are not checked yet. Its process and thread may be numbers or strings.
type foreignEvent struct {
	Name, Ph string
	Ts, Dur  json.Number
	Pid, Tid json.RawMessage
	Args     json.RawMessage
}

func (e foreignEvent) rank() (rank int, ok bool) {
	var number *int
	if json.Unmarshal(e.Pid, &number) != nil || number == nil {
		return 0, false
	}
	if *number == hostPID {
		return Host, true
	}
	return *number, true
}

// thread returns the process and thread as text.
func (e foreignEvent) thread() [2]string { return [2]string{string(e.Pid), string(e.Tid)} }

func threadNames(events []foreignEvent) map[[2]string]string {
	names := map[[2]string]string{}
	for _, e := range events {
		var args struct{ Name string }
		if e.Ph == "M" && e.Name == "thread_name" && json.Unmarshal(e.Args, &args) == nil {
			names[e.thread()] = args.Name
		}
	}
	return names
}

func (t *Trace) add(e foreignEvent, names map[[2]string]string) error {
	rank, ok := e.rank()
	if !ok || e.Ph != "X" && e.Ph != "C" {
		return nil
	}
	start, err := duration("ts", e.Ts)
	if err != nil {
		return err
	}
	if e.Ph == "C" {
		return t.count(e, rank, start)
	}
	took, err := duration("dur", e.Dur)
	if err != nil {
		return err
	}
	if took < 0 || start > math.MaxInt64-took {
		return fmt.Errorf("it takes %v from %v", took, start)
	}
	stream, ok := names[e.thread()]
	if !ok {
		stream = strings.Trim(string(e.Tid), `"`)
	}
	span := Span{Rank: rank, Stream: stream, Name: e.Name, Start: start, End: start + took}
	var args struct {
		Work
		Flow   int64
		Detail string
	}
	_ = json.Unmarshal(e.Args, &args) // the arguments of others are what they like
	span.Work, span.Flow, span.Detail = args.Work, args.Flow, args.Detail
	t.Spans = append(t.Spans, span)
	return nil
}

// count adds a counter for each series of an event. Only events of WriteChrome have series without names.
func (t *Trace) count(e foreignEvent, rank int, at time.Duration) error {
	var series map[string]json.Number
	if err := json.Unmarshal(e.Args, &series); err != nil {
		return fmt.Errorf("its counts: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(series)) {
		value, err := series[key].Int64()
		if err != nil {
			float, err := series[key].Float64()
			if err != nil || math.Abs(float) >= 1<<63 {
				return fmt.Errorf("its count %q is %q, not a number of 64 bits", key, series[key])
			}
			value = int64(math.Round(float))
		}
		name := e.Name
		if key != "value" {
			name += " " + key
		}
		t.Counters = append(t.Counters, Counter{rank, name, at, value})
	}
	return nil
}

func duration(what string, micros json.Number) (time.Duration, error) {
	v, err := micros.Float64()
	ns := math.Round(v * 1000)
	if err != nil || math.Abs(ns) >= 1<<63 {
		return 0, fmt.Errorf("its %s is %q: want microseconds, at most 292 years", what, micros)
	}
	return time.Duration(ns), nil
}
