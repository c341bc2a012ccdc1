package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"
)

// event is one of Chrome's trace event format: a span (phase X), a count (C), a name (M), or the beginning (s) or end
// (f) of an arrow between spans.
//
// Source: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
type event struct {
	Name   string         `json:"name"`
	Phase  string         `json:"ph"`
	Start  *micros        `json:"ts,omitempty"`
	Took   *micros        `json:"dur,omitempty"`
	Rank   pid            `json:"pid"`
	Thread int            `json:"tid"`
	Kind   string         `json:"cat,omitempty"` // of an arrow, which also has a number
	ID     int            `json:"id,omitempty"`
	Bind   string         `json:"bp,omitempty"`
	Args   map[string]any `json:"args,omitempty"`
}

// pid is the number of a process: the rank, but for [Host], since viewers want no negative one.
type pid int

const hostPID = 1 << 20

func (p pid) MarshalJSON() ([]byte, error) {
	if p == Host {
		p = hostPID
	}
	return strconv.AppendInt(nil, int64(p), 10), nil
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
// several threads of the same name. Of spans with the same Flow, arrows lead from the first to the others. It is an
// error if a span ends before it starts.
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
		add(event{Phase: "M", Name: "process_name", Rank: pid(rank),
			Args: map[string]any{"name": process(rank)}})
	}
	var linked []flowing
	threads := 0 // of all ranks: some viewers take thread 0 for an idle one, and equal threads of two processes for one
	for _, stream := range byStream(t.Spans) {
		sorted, track := nest(stream)
		first := threads + 1
		for i, s := range sorted {
			thread := first + track[i]
			if thread > threads {
				threads = thread
				add(event{Phase: "M", Name: "thread_name", Rank: pid(s.Rank), Thread: thread,
					Args: map[string]any{"name": s.Stream}})
			}
			start, took := micros(s.Start), micros(s.End-s.Start)
			e := event{Name: s.Name, Phase: "X", Start: &start, Took: &took, Rank: pid(s.Rank), Thread: thread,
				Args: s.args()}
			add(e)
			linked = append(linked, flowing{e, s.Flow})
		}
	}
	events = append(events, arrows(linked)...)
	for _, c := range t.Counters {
		at := micros(c.At)
		add(event{Phase: "C", Name: c.Name, Start: &at, Rank: pid(c.Rank), Args: map[string]any{"value": c.Value}})
	}
	return events
}

// arrows joins the first of the events that have a flow to the others. An arrow is bound to the event of its thread at
// its time.
func arrows(linked []flowing) (arrows []event) {
	of := func(f flowing) (int64, time.Duration) { return f.flow, time.Duration(*f.Start) }
	for _, group := range flows(linked, of) {
		for _, to := range group[1:] {
			n := len(arrows)/2 + 1
			arrows = append(arrows, arrow(group[0].event, "s", n), arrow(to.event, "f", n))
		}
	}
	return arrows
}

type flowing struct {
	event
	flow int64
}

func arrow(at event, phase string, number int) event {
	e := event{Name: "launch", Phase: phase, Start: at.Start, Rank: at.Rank, Thread: at.Thread, Kind: "launch",
		ID: number}
	if phase == "f" {
		e.Bind = "e" // to the event that encloses its time, not the next one
	}
	return e
}

func (s Span) args() map[string]any {
	args := map[string]any{}
	add := func(name string, value any, zero bool) {
		if !zero {
			args[name] = value
		}
	}
	add("flops", s.FLOPs, s.FLOPs == 0)
	add("bytes", s.Bytes, s.Bytes == 0)
	add("flow", s.Flow, s.Flow == 0)
	add("detail", s.Detail, s.Detail == "")
	return args
}
