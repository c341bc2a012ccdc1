package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/trace"
)

// A run that goes on in pipelines, with shards, in other pipelines and on one device learns what one device learns, but for
// rounding.
func TestTrainPipe(t *testing.T) {
	dir := t.TempDir()
	folder, traced, file := filepath.Join(dir, "run"), filepath.Join(dir, "trace.json"), filepath.Join(dir, "schedule")
	hand := "# by hand\n\nschedule mine\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1\nrank 2: 2F0 2B0 2F1 2B1 2U1\n"
	if err := os.WriteFile(file, []byte(hand), 0o600); err != nil {
		t.Fatal(err)
	}
	resume, want := []string{"train", "--resume", "--checkpoint", folder}, oneDevice(t)

	r := goesOn(t, want, 0, 1, append(slices.Clone(together), "--checkpoint", folder, "--pipe", "2", "--schedule", "ZB-H1", "--cut", "1, 2")...)
	if p := r.Pipeline; p == nil || p.Schedule != "zb-h1" || p.Ranks != 2 || p.Microbatches != 4 || !slices.Equal(p.Cut, []int{1, 2}) ||
		p.Idle != nil || !slices.Equal(p.PeakActivations, []int{2, 2}) {
		t.Errorf("pipeline %+v", p)
	}
	embedding := int64(4 * (256 + 8) * 16) // the tables of tokens and positions, all that the first device has
	second := 4*int64(r.Params) - embedding
	if m := r.BytesPerDevice; m["parameters"] != second || m["optimizer"] != second || m["gradients"] != second {
		t.Errorf("memory %v of %d parameters, %d bytes of which are on the first device", m, r.Params, embedding)
	}
	goesOn(t, want, 1, 2, append(resume, "--zero", "2", "--data", "2")...)
	r = goesOn(t, want, 2, 8, append(resume, "--zero", "0", "--schedule-file", file, "--trace", traced, "--sample", "3", "--temperature", "0")...)
	if r.Text != want.Text { // all pipelines' weights together are the model
		t.Errorf("the text is %q, of one device %q", r.Text, want.Text)
	}
	if p := r.Pipeline; p == nil || p.Schedule != "mine" || p.Ranks != 3 || p.Microbatches != 2 || !slices.Equal(p.Cut, []int{1, 1, 1}) ||
		p.Idle == nil || !(*p.Idle > 0 && *p.Idle < 1) || !slices.Equal(p.PeakActivations, []int{2, 2, 1}) {
		t.Errorf("pipeline %+v", p)
	}
	spans := tracedSpans(t, traced)
	for rank := range 6 { // two pipelines
		var did []string
		for _, s := range trace.Of(spans, rank, trace.Compute) {
			did = append(did, s.Name)
		}
		// A backward pass is two programs, of which the first block has the second alone; all units are updated together.
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

func TestTrainPipeRefuses(t *testing.T) {
	dir := t.TempDir()
	file, stuck, text := filepath.Join(dir, "file"), filepath.Join(dir, "stuck"), filepath.Join(dir, "text")
	for path, content := range map[string]string{file: "schedule mine\nrank 0: 0F0 0B0 0U0\nrank 1: 1F0 1B0 1U0\n",
		stuck: "schedule stuck\nrank 0: 0B0 0F0 0U0\n", text: "to be, or not to be"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"--pipe -1":                                          "--pipe=-1",
		"--pipe 999999":                                      "--pipe=999999",
		"--pipe 4 --data 256":                                "in all",
		"--pipe 2 --data 2 --shards 2":                       "--shards: each device holds everything",
		"--pipe 2 --accumulate 2":                            "--accumulate and --pipe=2, which has --microbatches",
		"--pipe 2 --sync naive --bucket-bytes 1MB":           "--bucket-bytes is 1000000 and --sync \"naive\"",
		"--pipe 2 --every 2":                                 "--every are for what goes between replicas, and there is one",
		"--pipe 2 --servers 1":                               "--servers=1 and --sync=ranks, which has no servers",
		"--pipe 2 --compress-gradients bf16":                 "--compress-gradients and --every are for what goes between replicas",
		"--pipe 2 --sync spmd":                               "--pipe and --sync=spmd, which is one program",
		"--pipe 2 --microbatches -1":                         "--microbatches=-1",
		"--pipe 2 --microbatches 3":                          "--batch=8 cannot be divided",
		"--pipe 2 --data 3":                                  "--batch=8 cannot be divided",
		"--pipe 2 --chunks -1":                               "--chunks=-1",
		"--pipe 2 --chunks 3":                                "takes no number of chunks",
		"--pipe 2 --schedule interleaved":                    "--pipe, --cut: 3 blocks cannot be 4 stages",
		"--pipe 3 --schedule interleaved":                    "--batch=8: the schedule interleaved takes no number of micro-batches",
		"--pipe 3 --schedule dualpipe":                       "--schedule",
		"--pipe 4":                                           "or more --layers",
		"--pipe 2 --cut some":                                "--cut=some: want even, measured",
		"--pipe 2 --cut 1,0,2":                               "--cut=1,0,2: want",
		"--pipe 2 --cut 3":                                   "--pipe, --cut: the cut [3] has 1 stages, the schedule 2",
		"--pipe 2 --cut 2,2":                                 "the cut [2 2] is for 4 blocks, the model has 3",
		"--pipe 2 --cut 9223372036854775807,4":               "--cut=9223372036854775807,4: want",
		"--pipe 2 --schedule pipedream --clip 1":             "--clip and --loss-scale need all gradients: leave them out",
		"--pipe 2 --schedule pipedream --tied":               "leave out --tied",
		"--pipe 2 --schedule pipedream --warmup 2":           "leave out --lr-schedule and --warmup",
		"--pipe 2 --schedule pipedream-2bw --precision fp16": "--clip and --loss-scale need",
		"--schedule zb-h1":                                   "--schedule: there is no pipeline",
		"--microbatches 4":                                   "--microbatches: there is no pipeline",
		"--cut measured --data 2":                            "--cut: there is no pipeline",
		"--recompute-stages":                                 "--recompute-stages: there is no pipeline",
		"--schedule-file none/where":                         "--schedule-file: open none/where",
		"--schedule-file " + text:                            "--schedule-file: " + text,
		"--schedule-file " + stuck:                           "--schedule-file: " + stuck,
		"--pipe 3 --schedule-file " + file:                   "is a schedule of 2 ranks",
		"--pipe 2 --schedule-file=":                          "--schedule-file is empty",
		"--chunks 2 --schedule-file " + file:                 "are said by the schedule",
	} {
		cmd := newCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(slices.Concat(small, []string{"--steps", "1", "--batch", "8"}, strings.Fields(args)))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out.Len() > 0 {
			t.Errorf("%s: printed %q, error %v, want %q in one sentence", args, out.String(), err, want)
		}
	}
}

func TestMicrobatches(t *testing.T) {
	for _, c := range []struct {
		kind              pipeline.Kind
		pipe, data, batch int
		want              int
	}{
		{"", 2, 1, 16, 4},
		{"", 4, 2, 16, 8},
		{"", 3, 1, 16, 8},
		{"", 3, 1, 7, 7},
		{"", 4, 1, 6, 6},
		{"", 1, 1, 16, 2},
		{"", 3, 1, 5, 5},
		{"", 2, 1, 1, 1},
		{"interleaved", 2, 1, 6, 6}, // a multiple of the ranks
		{"interleaved", 3, 1, 9, 9},
		{"dualpipe", 2, 1, 20, 4}, // an even number, at least twice the ranks
		{"pipedream-2bw", 4, 1, 6, 6},
	} {
		p := parallel{Data: c.data, Pipe: c.pipe, PipeSchedule: c.kind}
		s, err := p.schedule(c.batch)
		if err != nil || s.Micro != c.want {
			t.Errorf("%+v: %d micro-batches, error %v", c, s.Micro, err)
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

func Example_pipeline() {
	idle := 0.25
	var out strings.Builder
	r := pipeResult{Schedule: "1f1b", Ranks: 2, Stages: 2, Microbatches: 4, Cut: []int{2, 1}, Bubble: 0.2, Idle: &idle, PeakActivations: []int{2, 1}}
	r.print(&out)
	fmt.Print(out.String())
	// Output:
	// pipeline      1f1b on 2 devices, 4 micro-batches, stages of 2, 1 blocks
	// bubble        20% of a step if all passes took equally long; in the trace ranks had nothing to do for 25% of the time
	// activations   of at most 2, 1 micro-batches are saved at once on device 0, 1, …
}
