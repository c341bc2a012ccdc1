package trace

import (
	"slices"
	"time"
)

// Range returns when the first span starts or the first counter changes, and when the last span ends or the last
// counter changes. Both are 0 if the trace is empty.
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

// Shift returns the trace with the duration added to all its times.
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

// With returns the trace together with others that count time from the same start.
func (t Trace) With(others ...Trace) Trace {
	t.Spans, t.Counters = slices.Clone(t.Spans), slices.Clone(t.Counters)
	for _, other := range others {
		t.Spans, t.Counters = append(t.Spans, other.Spans...), append(t.Counters, other.Counters...)
	}
	sortSpans(t.Spans)
	sortCounters(t.Counters)
	return t
}

// Filter returns the trace with only the spans that keep accepts.
func (t Trace) Filter(keep func(Span) bool) Trace {
	t.Spans = slices.DeleteFunc(slices.Clone(t.Spans), func(s Span) bool { return !keep(s) })
	return t
}

// Within returns the part of the trace between two times, with times counted from the first: for example one step, to
// compare it with a step of another run on the same axis. Spans that begin earlier or end later are cut, with their
// full work; counters start with their value at that time, if they had one.
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
