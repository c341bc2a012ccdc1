package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

// A run that goes on in pipelines, with shards, in other pipelines and on one device learns what one device learns, but
// for rounding.
func TestTrainPipe(t *testing.T) {
	dir := t.TempDir()
	folder, traced, file := filepath.Join(dir, "run"), filepath.Join(dir, "trace.json"), filepath.Join(dir, "schedule")
	hand := "# by hand\n\nschedule mine\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1\nrank 2: 2F0 2B0 " +
		"2F1 2B1 2U1\n"
	if err := os.WriteFile(file, []byte(hand), 0o600); err != nil {
		t.Fatal(err)
	}
	resume, want := []string{"train", "--resume", "--checkpoint", folder}, oneDevice(t)

	r := goesOn(t, want, 0, 1, append(slices.Clone(together), "--checkpoint", folder, "--pipe", "2", "--schedule",
		"ZB-H1", "--cut", "1, 2")...)
	if p := r.Pipeline; p == nil || p.Schedule != "zb-h1" || p.Ranks != 2 || p.Microbatches != 4 ||
		!slices.Equal(p.Cut, []int{1, 2}) || p.Idle != nil || !slices.Equal(p.PeakActivations, []int{2, 2}) {
		t.Errorf("pipeline %+v", p)
	}
	embedding := int64(4 * (256 + 8) * 16) // the tables of tokens and positions, all that the first device has
	second := 4*int64(r.Params) - embedding
	if m := r.BytesPerDevice; m["parameters"] != second || m["optimizer"] != second || m["gradients"] != second {
		t.Errorf("memory %v of %d parameters, %d bytes of which are on the first device", m, r.Params, embedding)
	}
	goesOn(t, want, 1, 2, append(resume, "--zero", "2", "--data", "2")...)
	r = goesOn(t, want, 2, 8, append(resume, "--zero", "0", "--schedule-file", file, "--trace", traced, "--sample", "3",
		"--temperature", "0")...)
	if r.Text != want.Text { // all pipelines' weights together are the model
		t.Errorf("the text is %q, of one device %q", r.Text, want.Text)
	}
	if p := r.Pipeline; p == nil || p.Schedule != "mine" || p.Ranks != 3 || p.Microbatches != 2 ||
		!slices.Equal(p.Cut, []int{1, 1, 1}) ||
		p.Idle == nil || !(*p.Idle > 0 && *p.Idle < 1) || !slices.Equal(p.PeakActivations, []int{2, 2, 1}) {
		t.Errorf("pipeline %+v", p)
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
	out, err := ran(t, append(resume, "--pipe", "0", "--data", "1")...)
	if err != nil || !strings.Contains(out, "nothing to do: step 8") || strings.Contains(out, "pipeline") {
		t.Errorf("resumed on one device: %v, %s", err, out)
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
}
