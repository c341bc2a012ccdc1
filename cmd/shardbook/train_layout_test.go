package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

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
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	tr := must.Get(trace.ReadChrome(file))(t)
	return tr.Spans
}

// A run that goes on from layout to layout learns what one device learns, but for rounding, and shows what it did.
func TestTrainLayouts(t *testing.T) {
	dir := t.TempDir()
	folder, traced, file := filepath.Join(dir, "run"), filepath.Join(dir, "trace.json"), filepath.Join(dir, "schedule")
	hand := "# by hand\n\nschedule mine\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1\n" +
		"rank 2: 2F0 2B0 2F1 2B1 2U1\n"
	writeFile(t, file, hand)
	before, want := runtime.NumGoroutine(), oneDevice(t)
	p := 4 * int64(want.Params)            // bytes; each parameter has an even number of elements
	embedding := int64(4 * (256 + 8) * 16) // bytes of the tables of tokens and positions, all that the first rank has
	holds := func(r trainResult, parameters, optimizer int64) bool {
		m := r.BytesPerDevice
		return m["parameters"] == parameters && m["optimizer"] == optimizer
	}
	sends := func(r trainResult, axes ...string) bool {
		return !slices.ContainsFunc(axes, func(axis string) bool { return r.SentByAxis[axis] <= 0 })
	}
	shares := func(r trainResult) bool {
		m := r.BytesPerDevice
		return len(r.Collectives) > 0 && m["parameters"] < p*2/3 && m["optimizer"] == m["parameters"] &&
			m["temporary"] > 0
	}
	step, resume := 0, []string{"train", "--resume", "--checkpoint", folder}
	for _, way := range []struct {
		flags string
		shows func(r trainResult) bool
	}{
		{"--pipe 2 --schedule ZB-H1", func(r trainResult) bool {
			pipe := r.Pipeline
			return holds(r, p-embedding, p-embedding) && r.BytesPerDevice["gradients"] == p-embedding && pipe != nil &&
				pipe.Schedule == "zb-h1" && pipe.Ranks == 2 && pipe.Microbatches == 4 && pipe.Idle == nil &&
				slices.Equal(pipe.Cut, []int{1, 2}) && slices.Equal(pipe.PeakActivations, []int{2, 2})
		}},
		// Stage 3 gathers more than once, and less than twice, what it scatters once.
		{"--pipe 0 --data 2 --zero 3 --prefetch 1", func(r trainResult) bool {
			s := r.Sent
			return holds(r, p/2, p/2) && s != nil && s.Scatter == p/2 && s.Gather > p/2 && s.Gather < p &&
				r.Pipeline == nil && r.Collectives == nil
		}},
		{"--sync ranks", func(r trainResult) bool { return holds(r, p/2, p/2) && r.Sent.Scatter == p/2 }},
		{"--data 4 --zero 1 --shards 2 --accumulate 2", func(r trainResult) bool {
			return holds(r, p, p/2) && *r.Sent == traffic{p / 2, p / 2, p / 2}
		}},
		{"--zero 2 --sync auto --data 2 --accumulate 1", func(r trainResult) bool { return holds(r, p, p/2) }},
		{"--zero 0 --schedule-file " + file + " --trace " + traced, func(r trainResult) bool {
			pipe := r.Pipeline
			return pipe != nil && pipe.Schedule == "mine" && pipe.Ranks == 3 && pipe.Microbatches == 2 &&
				pipe.Idle != nil && *pipe.Idle > 0 && *pipe.Idle < 1 && r.Trace.Steps == tracedSteps &&
				slices.Equal(pipe.PeakActivations, []int{2, 2, 1})
		}},
		{"--pipe 2 --data 2 --tensor 2 --zero 1 --microbatches 2", func(r trainResult) bool {
			return r.Pipeline != nil && sends(r, "data", "pipe", "tensor")
		}},
		{"--pipe 0 --tensor 0 --zero 3 --data 1 --replicas 2 --seq-parallel 2 --accumulate 2",
			func(r trainResult) bool { return sends(r, "ring", "replica") }},
		{"--zero 0 --replicas 0 --seq-parallel 0 --data 2 --tensor 2 --tensor-sequence --accumulate 1",
			shares},
		{"--tensor 2 --sync auto", shares},
		{"--tensor 0 --data 1 --seq-parallel 4 --seq-method Hybrid", func(r trainResult) bool {
			return holds(r, p, p) && len(r.Collectives) > 2
		}},
		{"--seq-parallel 0 --data 2 --offload-optimizer --device-memory 1GB",
			func(r trainResult) bool { return holds(r, p, 0) }},
		{"--offload-optimizer=false --pipe 2 --replicas 2 --cut measured --link 1e9", func(r trainResult) bool {
			return r.Pipeline != nil && len(r.Pipeline.Cut) == 2
		}},
	} {
		run, to := resume, step+1
		if step == 0 {
			run = append(slices.Clone(together), "--checkpoint", folder, "--cut", "1, 2")
		}
		if strings.Contains(way.flags, "--trace") {
			to += tracedSteps // so that one is thrown away before those that are traced
		}
		r := goesOn(t, want, step, to, slices.Concat(run, strings.Fields(way.flags))...)
		if !way.shows(r) {
			t.Errorf("%s: of %d bytes of parameters: %+v, sent %+v, pipeline %+v", way.flags, p, r, r.Sent, r.Pipeline)
		}
		step = to
	}
	spans := tracedSpans(t, traced)
	for rank := range 6 { // two pipelines
		var did []string
		for _, s := range trace.Of(spans, rank, trace.Compute) {
			did = append(did, s.Name)
		}
		// A backward pass is two programs, but the first block has only the second; all units are updated together.
		once := [][]string{{"0F0", "0F1", "0W0", "0W1", "U1"}, {"1F0", "1F1", "1I0", "1W0", "1I1", "1W1", "U1"},
			{"2F0", "2I0", "2W0", "2F1", "2I1", "2W1", "U1"}}[rank%3]
		if want := slices.Repeat(once, tracedSteps); !slices.Equal(did, want) {
			t.Errorf("rank %d did %q, want %q", rank, did, want)
		}
	}
	// All devices' weights together are the model.
	for _, way := range []string{"", "--zero 3 --pipe 0 --replicas 0 --data 2", "--zero 0 --tensor 2",
		"--tensor 0 --data 1"} {
		r := trained(t, slices.Concat(resume, []string{"--sample", "3", "--temperature", "0"}, strings.Fields(way))...)
		if len(r.Losses) > 0 || r.Text != want.Text {
			t.Errorf("%s: the text is %q, of one device %q", way, r.Text, want.Text)
		}
	}
	out, err := ran(t, append(resume, "--zero", "1", "--data", "4", "--shards", "2")...)
	if err != nil || !strings.Contains(out, "nothing to do: step "+strconv.Itoa(step)) ||
		!strings.Contains(out, " of gradients to shards, ") || strings.Contains(out, "pipeline") {
		t.Errorf("resumed where nothing is left to do: %v, %s", err, out)
	}
	if _, err := ran(t, append(resume, "--zero", "2", "--sync", "overlap")...); err == nil ||
		!strings.Contains(err.Error(), `--sync is "overlap", --bucket-bytes 0 and --zero 2: what is sharded`) {
		t.Errorf("resumed in a way that there is not: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines more than before", runtime.NumGoroutine()-before)
		}
	}
}

// Ranks that are interrupted, and go on in another process, end bit for bit as those of another form that are not. What
// they end with, and what they did, can be seen.
func TestTrainRanks(t *testing.T) {
	dir := t.TempDir()
	first, whole, traced := filepath.Join(dir, "first"), filepath.Join(dir, "whole"), filepath.Join(dir, "trace.json")
	args := append(slices.Clone(small), "--data", "2", "--accumulate", "2")
	stopped := interrupted(t, first, 2, nil, append(args, "--bucket-bytes", "20kB")...)
	to := stopped + 4
	sample := []string{"--steps", strconv.Itoa(to), "--sample", "4", "--temperature", "0"}
	got := trained(t, append([]string{"train", "--resume", "--checkpoint", first, "--bucket-bytes", "2e4", "--trace",
		traced}, sample...)...)
	want := trained(t, append(append(args, "--sync", "Naive", "--checkpoint", whole), sample...)...)
	if !slices.Equal(got.Losses, want.Losses[stopped:]) || got.FirstStep != stopped+1 || got.Text != want.Text {
		t.Errorf("losses %v from step %d, text %q; without a stop %v, %q", got.Losses, got.FirstStep, got.Text,
			want.Losses[stopped:], want.Text)
	}
	_, state := tensorsOf(t, first, to)
	if _, wanted := tensorsOf(t, whole, to); !slices.Equal(state, wanted) {
		t.Error("the checkpoints differ")
	}
	if p, m := 4*int64(got.Params), got.BytesPerDevice; m["parameters"] != p || m["gradients"] != p ||
		m["optimizer"] != p || m["peak"] <= 3*p {
		t.Errorf("memory %v, parameters %d", m, p)
	}
	// An all-reduce is given each gradient once.
	if r := got.Trace; r == nil || r.Steps != 3 || r.Bytes != 4*int64(got.Params) || r.Overlap < 0 || r.Overlap > 1 {
		t.Errorf("trace %+v of %d parameters", r, got.Params)
	}
	for rank := range 2 {
		updates := 0
		for _, s := range trace.Of(tracedSpans(t, traced), rank, trace.Compute) {
			if strings.HasPrefix(s.Name, "U") {
				updates++
			}
		}
		if updates != 3 {
			t.Errorf("rank %d has %d updates in the trace, want 3", rank, updates)
		}
	}
}

// Several devices train as one does, but for rounding, whether one program has them or a parameter server. Ranks with
// servers that are interrupted stop behind one step, and go on.
func TestTrainOneProgramOrServer(t *testing.T) {
	for _, way := range []string{"spmd", "auto"} {
		goesOn(t, oneDevice(t), 0, 3, append(slices.Clone(together), "--data", "2", "--sync", way)...)
	}
	for _, way := range []string{"ps", "async"} {
		folder := filepath.Join(t.TempDir(), "run")
		stopped := interrupted(t, folder, 2, nil, append(slices.Clone(small), "--data", "2", "--sync", way, "--servers",
			"1")...)
		to := stopped + 2
		r := trained(t, "train", "--resume", "--checkpoint", folder, "--steps", strconv.Itoa(to))
		if want := unclipped(t).Losses; r.FirstStep != stopped+1 || len(r.Losses) != 2 ||
			way == "ps" && to <= len(want) && !near(r.Losses, want[stopped:to], 1e-5) {
			t.Errorf("%s: losses %v from step %d, on one device %v", way, r.Losses, r.FirstStep, want)
		}
	}
}

// A rank that waits in the middle, one that begins late and one that ends early all have nothing to do.
func TestIdle(t *testing.T) {
	span := func(rank int, stream string, start, end time.Duration) trace.Span {
		return trace.Span{Rank: rank, Stream: stream, Start: start, End: end}
	}
	tr := trace.Trace{Spans: []trace.Span{
		span(0, trace.Compute, 10, 14), span(0, trace.Wait, 14, 17), span(0, trace.Compute, 17, 20),
		span(1, trace.Compute, 12, 20), span(2, trace.Compute, 10, 15),
	}}
	if got, want := idle(tr), (3+2+5)/30.; math.Abs(got-want) > 1e-12 {
		t.Errorf("%g, want %g", got, want)
	}
	if got := idle(trace.Trace{}); got != 0 {
		t.Errorf("nothing recorded: %g", got)
	}
}

func TestPipeResult(t *testing.T) {
	idle := 0.25
	var out strings.Builder
	r := pipeResult{Schedule: "1f1b", Ranks: 2, Stages: 2, Microbatches: 4, Cut: []int{2, 1}, Bubble: 0.2, Idle: &idle,
		PeakActivations: []int{2, 1}}
	r.print(&out)
	const want = `pipeline      1f1b on 2 devices, 4 micro-batches, stages of 2, 1 blocks
bubble        20% of a step if all passes took equally long; in the trace ranks were idle for 25% of the time
activations   of at most 2, 1 micro-batches are saved at once on device 0, 1, …
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	all := []collective{{"all-reduce", 8, 12672}, {"all-to-all", 1, 8}}
	if got, want := collectivesText(all), "all-reduce ×8, 12.38 KiB; all-to-all ×1, 8 B"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func toyBatch(step int) (inputs, targets *tensors.Tensor, err error) {
	inputs, targets = toy.Batch(step, 12)
	return inputs, targets, nil
}

// toyRanks starts a run of a small model in a layout.
func toyRanks(t *testing.T, b *xla.Backend, p job.Parallel) (*ranks, error) {
	t.Helper()
	p.Accumulate, p.Every = 1, 1
	j := &job.Job{Batch: 12, Parallel: p}
	l := must.Get(j.Layout())(t)
	return newRanks(t.Context(), b, j, l, toyRecipe(), toyBatch, around{})
}

func toyRecipe() train.Recipe {
	return train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
}

// near tells whether two lists are as long as each other and nowhere farther apart.
func near(a, b []float64, within float64) bool {
	for i := range min(len(a), len(b)) {
		if !(math.Abs(a[i]-b[i]) <= within) {
			return false
		}
	}
	return len(a) == len(b)
}

// What fails on one rank, or for who listens, ends all ranks with that error.
func TestRanksFail(t *testing.T) {
	backend := devicetest.Open(t, 3)
	bad := errors.New("bad")
	nothing := func(metrics) error { return nil }
	bucket := job.Parallel{Data: 3, Sync: job.Bucket}
	for _, p := range []job.Parallel{bucket, {Data: 3, Sync: job.Async}, {Data: 1}, {Data: 3, Sync: job.SPMD},
		{Data: 3, Sync: job.Ranks, Zero: 3, Prefetch: 1},
		{Data: 1, Sync: job.Ranks, Pipe: 2, Cut: job.CutMeasured, RecomputeStages: true}} {
		r, err := toyRanks(t, backend, p)
		if err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		if err := r.Train(t.Context(), 9, toyBatch, func(metrics) error { return bad }); err != bad || r.Steps() < 1 {
			t.Errorf("%s: after a report that failed: step %d, error %v", p.Sync, r.Steps(), err)
		}
		var once atomic.Bool
		err = r.Train(t.Context(), r.Steps()+9, func(step int) (*tensors.Tensor, *tensors.Tensor, error) {
			if !once.Swap(true) {
				return nil, nil, bad
			}
			return toyBatch(step)
		}, nothing)
		if err != bad {
			t.Errorf("%s: a batch failed: %v", p.Sync, err)
		}
		if err := r.Train(t.Context(), r.Steps()+1, toyBatch, nothing); err == nil {
			t.Errorf("%s: trains on after an error", p.Sync)
		}
		if err := r.Save(t.Context(), t.TempDir(), nil, 1); err == nil {
			t.Errorf("%s: saves after an error", p.Sync)
		}
		r.Close()
	}
	r := must.Get(toyRanks(t, backend, bucket))(t)
	if err := r.Save(t.Context(), "/dev/null/nowhere", nil, 1); err == nil || strings.Contains(err.Error(), "rank 0") {
		t.Errorf("saving where nothing can be: %v", err)
	}
	r.Close()
	for _, p := range []job.Parallel{{Data: 4, Sync: job.Bucket}, {Data: 4, Sync: job.Ranks, Zero: 3}} {
		if _, err := toyRanks(t, backend, p); err == nil ||
			!strings.Contains(err.Error(), "the layout needs 4 devices, the backend has 3") {
			t.Errorf("stage %d: 4 ranks on 3 devices: %v", p.Zero, err)
		}
	}
}

// All who go through a gate stop at the same step, wherever each is when it closes.
func TestGate(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		ctx, stop := context.WithCancel(t.Context())
		g := &gate{ctx: ctx, begun: 3}
		ends := make([]int, 4)
		var all sync.WaitGroup
		for i := range ends {
			turns, last := random.IntN(5), 4+random.IntN(9)
			all.Go(func() {
				ends[i] = 3
				for g.pass(ends[i]) {
					ends[i]++
					for range turns {
						runtime.Gosched()
					}
					if ends[i] == last {
						stop()
					}
				}
			})
		}
		all.Wait()
		stop()
		if slices.Min(ends) != slices.Max(ends) {
			t.Fatalf("stopped at %v", ends)
		}
	}
}

// The run rests before the first traced step and before the one that comes before it, and nowhere else but where it
// would.
func TestTracerRests(t *testing.T) {
	for _, c := range []struct {
		began, end int
		want       []int
	}{
		{0, 10, []int{6, 7, 10}},
		{0, 4, []int{1, 4}},
		{0, 3, []int{3}},
		{0, 1, []int{1}},
		{5, 9, []int{6, 9}},
		{7, 9, []int{9}},
	} {
		tr := &tracer{rec: trace.New()}
		tr.plan(c.began, c.end)
		var rests []int
		for step := c.began; step < c.end; {
			step = tr.next(step, c.end)
			rests = append(rests, step)
		}
		if !slices.Equal(rests, c.want) {
			t.Errorf("from %d to %d it rests at %v, want %v", c.began, c.end, rests, c.want)
		}
	}
}
