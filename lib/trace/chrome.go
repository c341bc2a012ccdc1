package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// event is one of Chrome's trace event format: a span (phase X), a count (C) or a name (M).
//
// Source: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
type event struct {
	Name   string         `json:"name"`
	Phase  string         `json:"ph"`
	Start  *micros        `json:"ts,omitempty"`
	Took   *micros        `json:"dur,omitempty"`
	Rank   int            `json:"pid"`
	Thread int            `json:"tid"`
	Args   map[string]any `json:"args,omitempty"`
}

// micros is a time that is written to JSON in microseconds, with nanoseconds as decimals.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) {
	sign, ns := "", uint64(m)
	if m < 0 {
		sign, ns = "-", -ns
	}
	return fmt.Appendf(nil, "%s%d.%03d", sign, ns/1000, ns%1000), nil
}

// WriteChrome writes the trace as JSON in Chrome's trace event format, which https://ui.perfetto.dev and
// chrome://tracing open. Ranks become processes and streams threads; a stream whose spans partly overlap becomes
// several threads of the same name. It is an error if a span ends before it starts.
func (t Trace) WriteChrome(w io.Writer) error {
	ranks := map[int]bool{}
	for _, s := range t.Spans {
		if s.End < s.Start {
			return fmt.Errorf("trace: span %q of rank %d, %s ends at %v, before it starts at %v", s.Name, s.Rank,
				s.Stream, s.End, s.Start)
		}
		ranks[s.Rank] = true
	}
	for _, c := range t.Counters {
		ranks[c.Rank] = true
	}
	b := bufio.NewWriter(w) // keeps the first error until Flush
	b.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	separator := "\n"
	for _, e := range t.events(slices.Sorted(maps.Keys(ranks))) {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("trace: event %q: %w", e.Name, err)
		}
		b.WriteString(separator)
		b.Write(line)
		separator = ",\n"
	}
	b.WriteString("\n]}\n")
	if err := b.Flush(); err != nil {
		return fmt.Errorf("trace: writing events: %w", err)
	}
	return nil
}

func (t Trace) events(ranks []int) (events []event) {
	add := func(e event) { events = append(events, e) }
	for _, rank := range ranks {
		add(event{Phase: "M", Name: "process_name", Rank: rank,
			Args: map[string]any{"name": fmt.Sprintf("rank %d", rank)}})
	}
	threads := 0 // of all ranks: some viewers take thread 0 for an idle one, and equal threads of two processes for one
	for _, stream := range byStream(t.Spans) {
		sorted, track := nest(stream)
		first := threads + 1
		for i, s := range sorted {
			thread := first + track[i]
			if thread > threads {
				threads = thread
				add(event{Phase: "M", Name: "thread_name", Rank: s.Rank, Thread: thread,
					Args: map[string]any{"name": s.Stream}})
			}
			start, took := micros(s.Start), micros(s.End-s.Start)
			add(event{s.Name, "X", &start, &took, s.Rank, thread, s.Work.args()})
		}
	}
	for _, c := range t.Counters {
		at := micros(c.At)
		add(event{Phase: "C", Name: c.Name, Start: &at, Rank: c.Rank, Args: map[string]any{"value": c.Value}})
	}
	return events
}

func (w Work) args() map[string]any {
	args := map[string]any{}
	if w.FLOPs != 0 {
		args["flops"] = w.FLOPs
	}
	if w.Bytes != 0 {
		args["bytes"] = w.Bytes
	}
	return args
}
