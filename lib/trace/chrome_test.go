package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/trace"
)

func ExampleTrace_WriteChrome() {
	t := trace.Trace{
		Spans: []trace.Span{
			{Rank: 0, Stream: trace.Compute, Name: "forward", Start: 1500, End: 4001, Work: trace.Work{FLOPs: 64}},
			{Rank: 1, Stream: trace.Send, Name: "h0", Start: 4000, End: 5000},
			{Rank: trace.Host, Stream: "main", Name: "cuLaunchKernel", Start: 1500, End: 1600, Flow: 7},
			{Rank: 0, Stream: "device 0 Stream #13", Name: "gemm", Start: 1700, End: 2000, Flow: 7, Detail: "grid 8×1×1"},
		},
		Counters: []trace.Counter{{Rank: 0, Name: "live", At: 4000, Value: 128}},
	}
	if err := t.WriteChrome(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// {"displayTimeUnit":"ms","traceEvents":[
	// {"name":"process_name","ph":"M","pid":1048576,"tid":0,"args":{"name":"host"}},
	// {"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}},
	// {"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}},
	// {"name":"thread_name","ph":"M","pid":1048576,"tid":1,"args":{"name":"main"}},
	// {"name":"cuLaunchKernel","ph":"X","ts":1.500,"dur":0.100,"pid":1048576,"tid":1,"args":{"flow":7}},
	// {"name":"thread_name","ph":"M","pid":0,"tid":2,"args":{"name":"compute"}},
	// {"name":"forward","ph":"X","ts":1.500,"dur":2.501,"pid":0,"tid":2,"args":{"flops":64}},
	// {"name":"thread_name","ph":"M","pid":0,"tid":3,"args":{"name":"device 0 Stream #13"}},
	// {"name":"gemm","ph":"X","ts":1.700,"dur":0.300,"pid":0,"tid":3,"args":{"detail":"grid 8×1×1","flow":7}},
	// {"name":"thread_name","ph":"M","pid":1,"tid":4,"args":{"name":"send"}},
	// {"name":"h0","ph":"X","ts":4.000,"dur":1.000,"pid":1,"tid":4},
	// {"name":"launch","ph":"s","ts":1.500,"pid":1048576,"tid":1,"cat":"launch","id":1},
	// {"name":"launch","ph":"f","ts":1.700,"pid":0,"tid":3,"cat":"launch","id":1,"bp":"e"},
	// {"name":"live","ph":"C","ts":4.000,"pid":0,"tid":0,"args":{"value":128}}
	// ]}
}

// A file of another program: a list, other phases, a thread without a name, and counts with several series.
func ExampleReadChrome() {
	t, err := trace.ReadChrome(strings.NewReader(`[
		{"ph":"M","name":"thread_name","pid":4,"tid":"main","args":{"name":"python"}},
		{"ph":"X","name":"step","pid":4,"tid":"main","ts":10,"dur":2.5,"args":{"step":7}},
		{"ph":"X","name":"kernel","pid":4,"tid":7,"ts":11,"dur":1},
		{"ph":"X","name":"overhead","pid":"Spans","tid":7,"ts":11,"dur":1},
		{"ph":"i","name":"instant","pid":4,"tid":7,"ts":11,"s":"g"},
		{"ph":"C","name":"memory","pid":4,"ts":12,"args":{"host":3,"device":4.6}}]`))
	fmt.Println(t.Spans, err)
	fmt.Println(t.Counters)
	// Output:
	// [{4 7 kernel 11µs 12µs {0 0} 0 } {4 python step 10µs 12.5µs {0 0} 0 }] <nil>
	// [{4 memory device 12µs 5} {4 memory host 12µs 3}]
}

// What is written is read again as it was, and stands in the file as the format wants it.
func TestChrome(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	const weeks = 20 * 24 * time.Hour
	for range 500 {
		want := someTrace(random)
		if random.IntN(2) == 0 { // real times, also before the start
			for i := range want.Spans {
				s := &want.Spans[i]
				s.Start = time.Duration(random.Int64N(int64(2*weeks))) - weeks
				s.End = s.Start + time.Duration(random.Int64N(int64(time.Hour)))
			}
			for i := range want.Counters {
				want.Counters[i].At = time.Duration(random.Int64N(int64(weeks)))
			}
			sortTrace(want)
		}
		var file bytes.Buffer
		must.Do(t, want.WriteChrome(&file))
		checkChrome(t, file.Bytes())
		got := must.Get(trace.ReadChrome(&file))(t)
		if !sameTrace(got, want) {
			t.Fatalf("read %+v\nwant %+v", got, want)
		}
	}
}

// sameTrace compares traces up to the order of spans of one stream and time.
func sameTrace(a, b trace.Trace) bool {
	count := func(spans []trace.Span) map[trace.Span]int {
		n := map[trace.Span]int{}
		for _, s := range spans {
			n[s]++
		}
		return n
	}
	return reflect.DeepEqual(count(a.Spans), count(b.Spans)) &&
		(len(a.Counters)+len(b.Counters) == 0 || reflect.DeepEqual(a.Counters, b.Counters))
}

// checkChrome checks a file against the format's description: the fields that a phase needs, threads of one process
// each, with a name that comes first, and events of one thread beside or within each other.
func checkChrome(t *testing.T, file []byte) {
	t.Helper()
	var content struct {
		Events []struct {
			Name, Ph string
			Ts, Dur  *float64
			Pid, Tid *int
			ID       int
			Cat, Bp  string
			Args     map[string]any
		} `json:"traceEvents"`
	}
	d := json.NewDecoder(bytes.NewReader(file))
	must.Do(t, d.Decode(&content))
	named, process := map[int]bool{}, map[int]int{}
	type at struct {
		thread int
		time   float64
	}
	starts, arrows := map[at]bool{}, map[int]float64{}
	open := map[int][]float64{}
	for i, e := range content.Events {
		if e.Pid == nil || e.Tid == nil {
			t.Fatalf("event %d has no process or thread", i)
		}
		switch e.Ph {
		case "M":
			if _, ok := e.Args["name"].(string); !ok {
				t.Fatalf("event %d names nothing", i)
			}
			if e.Name == "thread_name" {
				named[*e.Tid] = true
			}
		case "C":
			if _, ok := e.Args["value"].(float64); !ok || e.Ts == nil {
				t.Fatalf("event %d has no time or value", i)
			}
		case "s", "f": // an arrow: each has a beginning and an end, within spans of their threads
			if e.Ts == nil || e.ID == 0 || e.Cat == "" || !named[*e.Tid] || !starts[at{*e.Tid, *e.Ts}] ||
				(e.Ph == "f") != (e.Bp == "e") || (e.Ph == "f") != (arrows[e.ID] > 0) {
				t.Fatalf("event %d is no arrow's beginning or end: %+v", i, e)
			}
			if arrows[e.ID] == 0 {
				arrows[e.ID] = *e.Ts + 1e15
			} else if *e.Ts+1e15 < arrows[e.ID] {
				t.Fatalf("event %d: an arrow leads into the past", i)
			}
		case "X":
			starts[at{*e.Tid, *e.Ts}] = true
			if e.Ts == nil || e.Dur == nil || *e.Dur < 0 || !named[*e.Tid] || *e.Tid == 0 {
				t.Fatalf("event %d has no time, or no thread with a name", i)
			}
			if was, ok := process[*e.Tid]; ok && was != *e.Pid {
				t.Fatalf("event %d: thread %d is of processes %d and %d", i, *e.Tid, was, *e.Pid)
			}
			process[*e.Tid] = *e.Pid
			ends := open[*e.Tid]
			const rounding = 1e-2 // of three weeks in µs, as a float
			for len(ends) > 0 && ends[len(ends)-1] <= *e.Ts+rounding/20 {
				ends = ends[:len(ends)-1]
			}
			end := *e.Ts + *e.Dur
			if len(ends) > 0 && end > ends[len(ends)-1]+rounding {
				t.Fatalf("event %d crosses one before it on its thread", i)
			}
			open[*e.Tid] = append(ends, end)
		default:
			t.Fatalf("event %d has the phase %q", i, e.Ph)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }
func (full) Read([]byte) (int, error)  { return 0, errors.New("broken") }

func TestChromeErrors(t *testing.T) {
	if err := step().WriteChrome(full{}); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("writing to what is full: %v", err)
	}
	backwards := trace.Trace{Spans: []trace.Span{{Name: "x", Start: 2, End: 1}}}
	if err := backwards.WriteChrome(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("a span that ends before it starts: %v", err)
	}
	if _, err := trace.ReadChrome(full{}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("reading what is broken: %v", err)
	}
	for text, want := range map[string]string{
		``:           "not in Chrome's",
		`{`:          "not in Chrome's",
		`7`:          "not in Chrome's",
		`{"a":1} {}`: "not in Chrome's",
		`[{"ph":"X","name":"n","pid":1,"tid":1}]`:                                      `event 0, "n": its ts is ""`,
		`[{"ph":"X","pid":1,"ts":1}]`:                                                  "its dur",
		`[{"ph":"X","pid":1,"ts":1e300,"dur":1}]`:                                      "at most 292 years",
		`[{"ph":"X","pid":1,"ts":1e400,"dur":1}]`:                                      "at most 292 years",
		`[{"ph":"X","pid":1,"ts":9e15,"dur":9e15}]`:                                    "it takes",
		`[{"ph":"X","pid":1,"ts":1,"dur":-1}]`:                                         "it takes",
		`[{"ph":"C","pid":1,"ts":1}]`:                                                  "its counts",
		`[{"ph":"C","pid":1,"ts":1,"args":{"value":"x"}}]`:                             "its counts",
		`[{"ph":"C","pid":1,"ts":1,"args":{"value":1e19}}]`:                            "64 bits",
		`{"traceEvents":[{"ph":"C","pid":1,"ts":1,"args":{"value":1e300}}],"other":1}`: "64 bits",
	} {
		_, err := trace.ReadChrome(strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), "trace: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not say %q", text, err, want)
		}
	}
}

// Whatever is read can be written, and is the same when read again.
func FuzzReadChrome(f *testing.F) {
	for _, text := range []string{
		`[]`, `{}`, `[null]`,
		`{"traceEvents":[{"ph":"X","name":"n","pid":1,"tid":"a\"b","ts":1.5,"dur":2,"args":{"flops":3}}]}`,
		`[{"ph":"C","name":"c","pid":null,"ts":-1e3,"args":{"value":1,"x":-2.5}}]`,
		`[{"ph":"X","pid":2,"ts":9223372036854775.807,"dur":0}]`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := trace.ReadChrome(strings.NewReader(text))
		if err != nil {
			return
		}
		var file bytes.Buffer
		if err := got.WriteChrome(&file); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		again, err := trace.ReadChrome(&file)
		if err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		if from, to := got.Range(); from > -1<<50 && to < 1<<50 && !sameTrace(got, again) {
			t.Fatalf("read %+v\nthen %+v", got, again)
		}
	})
}
