package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/trace"
)

// A run that goes on from step to step in another way, of other devices, with shards and without, learns what one
// device learns, but for rounding.
func TestTrainZero(t *testing.T) {
	dir := t.TempDir()
	folder, traced := filepath.Join(dir, "run"), filepath.Join(dir, "trace.json")
	resume := []string{"train", "--resume", "--checkpoint", folder}
	ways := [][]string{
		append(slices.Clone(together), "--checkpoint", folder, "--data", "2", "--zero", "3", "--prefetch", "1"),
		append(slices.Clone(resume), "--sync", "ranks", "--trace", traced),
		append(slices.Clone(resume), "--data", "4", "--zero", "1", "--shards", "2", "--accumulate", "2"),
		append(slices.Clone(resume), "--zero", "2", "--sync", "auto", "--data", "2", "--accumulate", "1"),
		append(slices.Clone(resume), "--zero", "0"),
	}
	// The second makes four, so that there is one to throw away before those that are traced.
	ends := []int{1, 5, 6, 7, 8}
	want := oneDevice(t)
	results := make([]trainResult, len(ways))
	began := 0
	for i, way := range ways {
		r := goesOn(t, want, began, ends[i], way...)
		began, results[i] = ends[i], r
		if r.Sent != nil && r.Sent.Average > 0 {
			out, err := ran(t, resume...)
			if err != nil || !strings.Contains(out, "nothing to do: step 6") || !strings.Contains(out,
				" of gradients to shards, ") {
				t.Errorf("resumed where nothing is left to do: %v, %s", err, out)
			}
		}
	}
	p := 4 * int64(want.Params) // bytes; each parameter has an even number of elements
	for i, w := range []struct {
		parameters, optimizer int64
		sent                  *traffic
	}{
		{p / 2, p / 2, nil}, {p / 2, p / 2, nil}, {p, p / 2, &traffic{p / 2, p / 2, p / 2}}, {p, p / 2, nil}, {p, p,
			nil},
	} {
		r, m := results[i], results[i].BytesPerDevice
		if m["parameters"] != w.parameters || m["optimizer"] != w.optimizer {
			t.Errorf("%q: memory %v of %d bytes of parameters, want %+v", ways[i], m, p, w)
		}
		if w.sent != nil && (r.Sent == nil || *r.Sent != *w.sent) {
			t.Errorf("%q: sent %+v of %d bytes of parameters, want %+v", ways[i], r.Sent, p, *w.sent)
		}
	}
	// Stage 3 gathers more than once, and less than twice, what it scatters once.
	if s := results[0].Sent; s == nil || s.Scatter != p/2 || s.Gather <= p/2 || s.Gather >= p ||
		*s != *results[1].Sent {
		t.Errorf("stage 3 sent %+v and %+v of %d bytes of parameters", s, results[1].Sent, p)
	}
	checkZeroTrace(t, traced, results[1].Trace)
	if _, err := ran(t, append(resume, "--zero", "2", "--sync", "overlap")...); err == nil ||
		!strings.Contains(err.Error(), `--sync is "overlap", --bucket-bytes 0 and --zero 2: what is sharded`) {
		t.Errorf("resumed in a way that there is not: %v", err)
	}
}

// goesOn runs a training from one step to another, and compares its losses with those of a whole run on one device.
func goesOn(t *testing.T, want trainResult, from, to int, way ...string) trainResult {
	t.Helper()
	r := trained(t, append(way, "--steps", strconv.Itoa(to))...)
	if r.FirstStep != from+1 || !near(r.Losses, want.Losses[from:to], 1e-5) {
		t.Fatalf("%q: losses %v from step %d, on one device %v", way, r.Losses, r.FirstStep, want.Losses)
	}
	return r
}

// tracedSpans are the spans of a trace that was written.
func tracedSpans(t *testing.T, path string) []trace.Span {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tr, err := trace.ReadChrome(file)
	if err != nil {
		t.Fatal(err)
	}
	return tr.Spans
}

// checkZeroTrace checks a trace of two ranks in stage 3.
func checkZeroTrace(t *testing.T, path string, r *traceResult) {
	t.Helper()
	if r == nil || r.Steps != 3 || r.Bytes <= 0 || r.Overlap < 0 || r.Overlap > 1 {
		t.Errorf("trace %+v", r)
	}
	spans := tracedSpans(t, path)
	for rank := range 2 {
		updates := 0
		for _, s := range trace.Of(spans, rank, trace.Compute) {
			if strings.HasPrefix(s.Name, "U") {
				updates++
			}
		}
		// The embedding and the block are gathered for either pass, and the head once for both.
		if gathered := len(trace.Of(spans, rank, trace.Gather)); updates != 3 || gathered < 3*5 {
			t.Errorf("rank %d has %d updates and gathered %d times in the trace, want 3 and at least 15", rank, updates,
				gathered)
		}
	}
}

// Shards in one program give the losses and the weights that ranks come to, and they can be probed.
func TestSharded(t *testing.T) {
	backend := devicetest.Open(t, 3)
	var losses [3][]float64
	var ends [3][]float32
	for i, way := range []job.Sync{job.Ranks, job.SPMD, job.Auto} {
		p := job.Parallel{Data: 3, Sync: way, Accumulate: 2, Every: 1, Zero: 3}
		if way == job.Auto {
			p.Accumulate = 1
		}
		r, err := toyRunner(t, backend, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Train(t.Context(), 3, toyBatch, func(m metrics) error {
			if losses[i] = append(losses[i], m.Loss); m.Bytes <= 0 {
				t.Errorf("%s: %d bytes on a device", way, m.Bytes)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		ends[i] = weights(t, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	for way := 1; way < len(ends); way++ {
		for i, x := range ends[0] {
			if math.Abs(float64(x-ends[way][i])) > 1e-5 {
				t.Fatalf("weights %v by ranks, %v by one program", ends[0], ends[way])
			}
		}
		for i, x := range losses[0] {
			if math.Abs(x-losses[way][i]) > 1e-5 {
				t.Fatalf("losses %v by ranks, %v by one program", losses[0], losses[way])
			}
		}
	}
}
