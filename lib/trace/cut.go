package trace

import (
	"slices"
	"time"
)

// Range returns the first and the last time of a trace: from when the first span starts or the first count changes to
// when the last one ends or changes. Both are 0 if it is empty.
func (t Trace) Range() (from, to time.Duration) {
	if len(t.Spans) > 0 {
		from, to = t.Spans[0].Start, t.Spans[0].End
	} else if len(t.Counters) > 0 {
		from, to = t.Counters[0].At, t.Counters[0].At
	}
	for _, s := range t.Spans {
		from, to = min(from, s.Start), max(to, s.End)
	}
	for _, c := range t.Counters {
		from, to = min(from, c.At), max(to, c.At)
	}
	return from, to
}

// Shift returns the trace with all its times later by a duration, or earlier if that is negative.
func (t Trace) Shift(by time.Duration) Trace {
	t.Spans, t.Counters = slices.Clone(t.Spans), slices.Clone(t.Counters)
	for i := range t.Spans {
		t.Spans[i].Start += by
		t.Spans[i].End += by
	}
	for i := range t.Counters {
		t.Counters[i].At += by
	}
	return t
}

// Within returns what was from one time to another, and counts times from the first: one step of several, say, so that
// steps of different runs stand on the same axis. A span that reaches out is cut, and keeps its work; a count
// starts with the value that it had before, where it had one.
func (t Trace) Within(from, to time.Duration) Trace {
	var in Trace
	if to <= from {
		return in
	}
	for _, s := range t.Spans {
		if s.Start < to && (s.End > from || s.Start >= from) {
			s.Start, s.End = max(s.Start, from), min(s.End, to)
			in.Spans = append(in.Spans, s)
		}
	}
	type count struct {
		rank int
		name string
	}
	first := map[count]int{} // where the value is that a count starts with
	for _, c := range t.Counters {
		if c.At >= to {
			continue
		}
		of := count{c.Rank, c.Name}
		i, before := first[of]
		switch {
		case c.At > from:
			in.Counters = append(in.Counters, c)
		case before:
			in.Counters[i].Value = c.Value
		default:
			c.At = from
			first[of] = len(in.Counters)
			in.Counters = append(in.Counters, c)
		}
	}
	sortSpans(in.Spans) // cutting can change who starts first
	return in.Shift(-from)
}
