package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/xplane"
)

// FromProfile returns what XLA's profiler recorded as a trace, whose times are counted from begin. [Trace.With] adds it
// to the spans of a recorder, whose clock starts at [Recorder.Began]:
//
//	t := recorder.Trace().With(trace.FromProfile(profile, recorder.Began()))
//
// A stream of a device becomes a stream of the rank with the device's number, and a thread of the host one of the rank
// [Host]. The call that launches a kernel and the kernel have the same Flow. The bytes of a copy are its Work.
//
// The profiler has the wall clock and a recorder does not follow changes of it, so if the clock is set between
// begin and the profile, they are apart by that much.
func FromProfile(p *xplane.Profile, begin time.Time) Trace {
	t := Trace{Spans: make([]Span, len(p.Events))}
	for i, e := range p.Events {
		s := Span{Rank: Host, Stream: e.Line, Name: e.Name, Start: e.Start.Sub(begin), End: e.End().Sub(begin),
			Flow: e.Correlation, Detail: e.Detail()}
		if !e.Host {
			s.Rank, s.Stream = e.Device, fmt.Sprintf("device %d %s", e.Device, e.Line)
			s.Work = Work{FLOPs: e.FLOPs, Bytes: e.Bytes}
		}
		t.Spans[i] = s
	}
	sortSpans(t.Spans)
	return t
}

// Measure returns operations with the time that their events took in a profile, for a [Roof]. Operations without events
// are left out. The work of an operation is that of all its runs in the profile: for a program that ran n times
//
//	for _, o := range operations { // of xla.Program.Operations
//		n := float64(n) * o.Runs
//		counted = append(counted, trace.Operation{Module: o.Module, Name: o.Name,
//			Work: trace.Work{FLOPs: int64(n * o.FLOPs), Bytes: int64(n * float64(o.Bytes))}})
//	}
func Measure(p *xplane.Profile, counted ...Operation) (measured []Operation) {
	took := map[[2]string]time.Duration{}
	for _, o := range p.Operations() {
		took[[2]string{o.Module, o.Name}] = o.Total
	}
	for _, o := range counted {
		if d, ok := took[[2]string{o.Module, o.Name}]; ok {
			o.Time = d
			measured = append(measured, o)
		}
	}
	return measured
}

// Launch is a call that started work elsewhere, such as the launch of a kernel, and the work that it started.
type Launch struct {
	Call Span
	Work []Span // by start; a CUDA graph has several
}

// Launches returns the launches of a trace by the time of their calls.
func (t Trace) Launches() []Launch {
	var all []Launch
	for _, spans := range flows(t.Spans, func(s Span) (int64, time.Duration) { return s.Flow, s.Start }) {
		all = append(all, Launch{spans[0], spans[1:]})
	}
	slices.SortStableFunc(all, func(a, b Launch) int { return cmp.Compare(a.Call.Start, b.Call.Start) })
	return all
}

// Asynchronous returns two answers to how long launches of kernels took, both from the start of the first call.
// Returned is the time until the last call returned, which a clock around the calls shows: it says how fast the host
// launches, and would be the same for kernels a thousand times as slow. Done is the time until the last work was done.
// [Timing.Sync] makes a clock show that, and GoMLX's calls do it themselves: they return when the devices have
// finished.
//
// Launches that only copy or clear memory do not count: the host waits for a copy to it, such as that of a loss, which
// begins when all kernels are done, so the call of the copy returns as late as they.
func Asynchronous(launches []Launch) (returned, done time.Duration) {
	launches = slices.DeleteFunc(slices.Clone(launches), func(l Launch) bool {
		return !slices.ContainsFunc(l.Work, isKernel)
	})
	if len(launches) == 0 {
		return 0, 0
	}
	earlier := func(a, b Launch) int { return cmp.Compare(a.Call.Start, b.Call.Start) }
	first := slices.MinFunc(launches, earlier).Call.Start
	for _, l := range launches {
		returned = max(returned, l.Call.End-first)
		for _, w := range l.Work {
			done = max(done, w.End-first)
		}
	}
	return returned, done
}

// isKernel reports whether work is neither a copy ("MemcpyD2H") nor a memset, as XLA's profiler names them.
func isKernel(work Span) bool {
	return !strings.HasPrefix(work.Name, "Memcpy") && !strings.HasPrefix(work.Name, "Memset")
}

// flows returns the groups of two or more that have the same flow other than 0, each by start.
func flows[T any](all []T, of func(T) (flow int64, start time.Duration)) (groups [][]T) {
	sorted := slices.DeleteFunc(slices.Clone(all), func(v T) bool { flow, _ := of(v); return flow == 0 })
	slices.SortStableFunc(sorted, func(a, b T) int {
		flowA, startA := of(a)
		flowB, startB := of(b)
		return cmp.Or(cmp.Compare(flowA, flowB), cmp.Compare(startA, startB))
	})
	for len(sorted) > 0 {
		flow, _ := of(sorted[0])
		n := slices.IndexFunc(sorted, func(v T) bool { other, _ := of(v); return other != flow })
		if n < 0 {
			n = len(sorted)
		}
		if n > 1 {
			groups = append(groups, sorted[:n:n])
		}
		sorted = sorted[n:]
	}
	return groups
}
