package trace_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xplane"
)

var began = time.Unix(1_800_000_000, 0)

// gpu is a profile of a program that copies its input, multiplies matrices with two launches, of a kernel and of a CUDA
// graph of two, and copies the result to the host, which waits for it.
func gpu() *xplane.Profile {
	const µs = time.Microsecond
	at := func(line string, host bool, name string, start, end int, flow int64) xplane.Event {
		return xplane.Event{Host: host, Line: line, Name: name, Start: began.Add(time.Duration(start) * µs),
			Duration: time.Duration(end-start) * µs, Correlation: flow}
	}
	op := func(e xplane.Event, operation string) xplane.Event {
		e.Module, e.Operation = "step", operation
		return e
	}
	gemm := op(at("Stream #13", false, "gemm", 20, 120, 3), "dot.1")
	gemm.Kernel = xplane.Kernel{Grid: [3]int{132, 1, 1}, Block: [3]int{128, 1, 1}, Registers: 168, Occupancy: 12.5}
	add := op(at("Stream #13", false, "splitk_reduce", 120, 140, 4), "dot.1")
	add.Kernel = xplane.Kernel{Grid: [3]int{8, 1, 1}, Block: [3]int{256, 1, 1}}
	copies := at("Stream #14", false, "MemcpyH2D", 8, 18, 2)
	copies.Bytes, copies.From, copies.To = 500_000, "pinned", "device"
	back := at("Stream #15", false, "MemcpyD2H", 162, 165, 5)
	back.Bytes, back.From, back.To = 4, "device", "pinned"
	return &xplane.Profile{Devices: []xplane.Device{{Name: "NVIDIA H100 80GB HBM3"}}, Events: []xplane.Event{
		at("main", true, "Execute", 5, 166, 0), at("main", true, "cuMemcpyHtoDAsync", 6, 7, 2),
		at("main", true, "cuLaunchKernel", 10, 12, 3), at("main", true, "cuGraphLaunch (CudaGraph:5)", 13, 16, 4),
		gemm, add, op(at("Stream #13", false, "tanh", 150, 160, 4), "fusion"), copies,
		at("main", true, "cuMemcpyDtoHAsync", 17, 165, 5), back,
	}}
}

func ExampleFromProfile() {
	recorded := trace.Trace{Spans: []trace.Span{{Stream: trace.Compute, Name: "1F0", Start: 4000, End: 170_000}}}
	t := recorded.With(trace.FromProfile(gpu(), began))
	fmt.Print(t.Timeline("").Text())
	devices := t.Filter(func(s trace.Span) bool { return s.Rank != trace.Host && s.Flow != 0 })
	for _, row := range devices.Table() {
		fmt.Println(row.Name, row.Calls, row.Mean(), row.Bytes, cmp.Or(row.Detail, "-"))
	}
	launches := t.Launches()
	returned, done := trace.Asynchronous(launches)
	fmt.Println(len(launches), "launches; those of kernels returned after", returned, "and were done after", done)
	// Output:
	// time (ms), 0.004 … 0.17: M main, C compute, D device 0 Stream #13, E device 0 Stream #14, V device 0 Stream #15
	// host main                   MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM··
	//                             M·MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM··
	// rank 0 compute              CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC
	// rank 0 device 0 Stream #13  ·····DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD···DDDD····
	// rank 0 device 0 Stream #14  ·EEEE·······················································
	// rank 0 device 0 Stream #15  ·························································V··
	// gemm 1 100µs 0 grid 132×1×1, block 128×1×1, 168 registers, 0 B shared, occupancy 12.5 %
	// splitk_reduce 1 20µs 0 grid 8×1×1, block 256×1×1, 0 registers, 0 B shared, occupancy 0 %
	// tanh 1 10µs 0 -
	// MemcpyH2D 1 10µs 500000 pinned to device
	// MemcpyD2H 1 3µs 4 device to pinned
	// 4 launches; those of kernels returned after 6µs and were done after 150µs
}

// A launch is a call and all that it started, whatever other spans there are.
func TestLaunches(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	for range 300 {
		all := someTrace(random)
		members := map[int64][]trace.Span{}
		for _, s := range all.Spans {
			if s.Flow != 0 {
				members[s.Flow] = append(members[s.Flow], s)
			}
		}
		launches := all.Launches()
		for i, l := range launches {
			of := members[l.Call.Flow]
			delete(members, l.Call.Flow)
			if len(of) != 1+len(l.Work) || len(of) < 2 || i > 0 && l.Call.Start < launches[i-1].Call.Start {
				t.Fatalf("launch %d is %+v, of %+v", i, l, of)
			}
			for _, w := range append(l.Work, l.Call) {
				if !slices.Contains(of, w) || w.Start < l.Call.Start {
					t.Fatalf("launch %d has %+v, which is not in %+v or starts before its call", i, w, of)
				}
			}
		}
		for flow, of := range members {
			if len(of) > 1 {
				t.Fatalf("flow %d of %+v is not in %+v", flow, of, launches)
			}
		}
		var returned, done time.Duration
		for _, a := range launches { // from any call to any end: the longest is from the first to the last
			for _, b := range launches {
				returned = max(returned, b.Call.End-a.Call.Start)
				for _, w := range b.Work {
					done = max(done, w.End-a.Call.Start)
				}
			}
		}
		random.Shuffle(len(launches), func(i, j int) { launches[i], launches[j] = launches[j], launches[i] })
		if r, d := trace.Asynchronous(launches); r != returned || d != done {
			t.Fatalf("returned after %v and done after %v, want %v and %v", r, d, returned, done)
		}
	}
}

// Copies and memsets are no launches of kernels; a CUDA graph with a kernel is one, whatever else is in it.
func TestAsynchronousKernels(t *testing.T) {
	launch := func(returned, done time.Duration, works ...string) trace.Launch {
		l := trace.Launch{Call: trace.Span{Start: returned - 1, End: returned}}
		for _, name := range works {
			l.Work = append(l.Work, trace.Span{Name: name, Start: done - 1, End: done})
		}
		return l
	}
	all := []trace.Launch{launch(5, 8, "MemcpyH2D"), launch(11, 40, "gemm"), launch(12, 50, "Memset", "tanh", "MemcpyD2D"),
		launch(60, 60, "MemcpyD2H"), launch(61, 62, "Memset")}
	if returned, done := trace.Asynchronous(all); returned != 2 || done != 40 {
		t.Errorf("launches of kernels from 10 returned after %d and were done after %d, want 2 and 40", returned, done)
	}
	if returned, done := trace.Asynchronous(all[3:]); returned != 0 || done != 0 {
		t.Errorf("without kernels: %d and %d", returned, done)
	}
}

func TestFromProfile(t *testing.T) {
	p := gpu()
	got := trace.FromProfile(p, began.Add(-time.Second))
	if len(got.Spans) != len(p.Events) {
		t.Fatalf("%d spans of %d events", len(got.Spans), len(p.Events))
	}
	want := trace.Span{Rank: trace.Host, Stream: "main", Name: "cuLaunchKernel", Start: time.Second + 10*time.Microsecond,
		End: time.Second + 12*time.Microsecond, Flow: 3}
	if !slices.Contains(got.Spans, want) {
		t.Errorf("no %+v in %+v", want, got.Spans)
	}
	for i := range p.Events { // on another device, under that rank
		p.Events[i].Device = 3
	}
	for _, s := range trace.FromProfile(p, began).Spans {
		if s.Rank != trace.Host && (s.Rank != 3 || !strings.HasPrefix(s.Stream, "device 3 Stream #1")) {
			t.Errorf("on device 3: %+v", s)
		}
	}
	// A recorder's clock, and the wall clock that a profile has.
	before := time.Now()
	r := trace.New()
	if r.Began().Before(before) || r.Began().After(time.Now()) {
		t.Errorf("a recorder made after %v began at %v", before, r.Began())
	}
	p = &xplane.Profile{Events: []xplane.Event{{Start: r.Began().Add(5).Round(0), Duration: 2}}}
	if s := trace.FromProfile(p, r.Began()).Spans[0]; s.Start != 5 || s.End != 7 {
		t.Errorf("5 ns after a recorder began: %+v", s)
	}
	var none *trace.Recorder
	if !none.Began().IsZero() {
		t.Error("a nil recorder began")
	}
}

func TestWith(t *testing.T) {
	random := rand.New(rand.NewPCG(23, 24))
	for range 100 {
		a, b := someTrace(random), someTrace(random)
		both := a.With(b)
		want := trace.Trace{Spans: slices.Concat(a.Spans, b.Spans), Counters: slices.Concat(a.Counters, b.Counters)}
		sortTrace(want)
		if !sameTrace(both, want) && !reflect.DeepEqual(both, want) {
			t.Fatalf("%+v with %+v is %+v", a, b, both)
		}
		kept := both.Filter(func(s trace.Span) bool { return s.Flow == 0 })
		for _, s := range kept.Spans {
			if s.Flow != 0 {
				t.Fatalf("%+v is kept", s)
			}
		}
		linked := both.Filter(func(s trace.Span) bool { return s.Flow != 0 })
		if len(kept.Spans)+len(linked.Spans) != len(both.Spans) {
			t.Fatalf("%d and %d spans of %d", len(kept.Spans), len(linked.Spans), len(both.Spans))
		}
	}
}

func TestMeasure(t *testing.T) {
	got := trace.Measure(gpu(),
		trace.Operation{Module: "step", Name: "dot.1", Work: trace.Work{FLOPs: 1_200_000_000, Bytes: 120_000}},
		trace.Operation{Module: "other", Name: "fusion", Work: trace.Work{FLOPs: 1}},
		trace.Operation{Module: "step", Name: "fusion", Work: trace.Work{FLOPs: 5}},
		trace.Operation{Module: "step", Name: "constant"})
	want := []trace.Operation{
		{Module: "step", Name: "dot.1", Work: trace.Work{FLOPs: 1_200_000_000, Bytes: 120_000}, Time: 120 * time.Microsecond},
		{Module: "step", Name: "fusion", Work: trace.Work{FLOPs: 5}, Time: 10 * time.Microsecond},
	}
	if !slices.Equal(got, want) || got[0].Rate() != 1e13 {
		t.Errorf("measured %+v, want %+v", got, want)
	}
}
