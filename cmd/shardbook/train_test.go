package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/train"
)

// small trains a model that compiles fast.
var small = []string{"train", "--layers", "1", "--d", "16", "--heads", "4", "--seq", "8", "--no-bias", "--optimizer",
	"momentum", "--text", "reference",
	"--batch", "24"}

// together is what several devices train on, to be compared with one; its gradients have to be known whole.
var together = append(slices.Clone(small), "--lr", "0.01", "--clip", "1")

// oneDevice is what one device makes of together in 16 steps, and the text that it then writes.
func oneDevice(t *testing.T) trainResult {
	t.Helper()
	return trainedOnce(t, append(slices.Clone(together), "--steps", "16", "--sample", "3", "--temperature", "0")...)
}

// unclipped is what one device makes of small, in 40 steps.
func unclipped(t *testing.T) trainResult {
	t.Helper()
	return trainedOnce(t, append(slices.Clone(small), "--steps", "40")...)
}

// deeper is oneDevice for two layers, and in 3 steps.
func deeper(t *testing.T) trainResult {
	t.Helper()
	return trainedOnce(t, append(slices.Clone(together), "--layers", "2", "--steps", "3", "--sample", "3",
		"--temperature", "0")...)
}

// trained runs a training in this process and returns what it printed as JSON.
func trained(t *testing.T, args ...string) (r trainResult) {
	t.Helper()
	out, err := ran(t, append(slices.Clone(args), "--json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		t.Fatalf("%q: %v, printed %q", args, err, out)
	}
	return r
}

// ran runs the command in this process and returns what it printed.
func ran(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newCommand()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// once has the results of trainedOnce, by its arguments.
var once struct {
	sync.Mutex
	results map[string]trainResult
}

// trainedOnce is trained for a run that keeps no files and that several tests compare theirs with.
func trainedOnce(t *testing.T, args ...string) trainResult {
	t.Helper()
	once.Lock()
	defer once.Unlock()
	key := strings.Join(args, " ")
	r, ok := once.results[key]
	if !ok {
		if once.results == nil {
			once.results = map[string]trainResult{}
		}
		r = trained(t, args...)
		once.results[key] = r
	}
	return r
}

// The losses are those on which PyTorch and JAX agree for the same sizes, weights and text.
func TestTrainReference(t *testing.T) {
	r := trained(t, "train", "--reference", "--layers", "2", "--d", "128", "--heads", "4", "--seq", "64", "--batch",
		"8", "--steps", "4")
	for i, want := range []float64{5.54506, 5.24437, 5.04355, 4.92261} {
		if len(r.Losses) != 4 || math.Abs(r.Losses[i]-want) > 1e-4 {
			t.Fatalf("losses %v, want %v at step %d", r.Losses, want, i+1)
		}
	}
	// 12d²+13d a block, two tables of 256 and one of 64 rows, the last normalization.
	const params = 2*(12*128*128+13*128) + (2*256+64)*128 + 2*128
	if r.Params != params || r.BytesPerDevice["parameters"] != 4*params || r.BytesPerDevice["optimizer"] != 8*params {
		t.Errorf("%+v, want %d parameters in float32 with Adam's two states", r, params)
	}
}

// Recomputing and FlashAttention save memory and change no loss by more than rounding; the checkpoint knows of it.
func TestTrainSavesMemory(t *testing.T) {
	dir := t.TempDir()
	args := append(slices.Clone(small), "--layers", "2", "--kv-heads", "1", "--seq", "64", "--batch", "2", "--steps",
		"2")
	want := trained(t, append(slices.Clone(args), "--flash=off")...)
	for _, way := range [][]string{{"--flash"}, {"--recompute", "block", "--checkpoint", dir}} {
		got := trained(t, append(slices.Clone(args), way...)...)
		if !near(got.Losses, want.Losses, 1e-5) {
			t.Errorf("losses %v, without %s %v", got.Losses, way[0], want.Losses)
		}
		if got.BytesPerDevice["temporary"] >= want.BytesPerDevice["temporary"] {
			t.Errorf("%d temporary bytes, without %s %d", got.BytesPerDevice["temporary"], way[0],
				want.BytesPerDevice["temporary"])
		}
	}
	saved := must.Get(checkpoint.Open(filepath.Join(dir, "step-00000002")))(t)
	var j job.Job
	if err := saved.Meta(&j); err != nil || j.Model.Recompute != recompute.Block {
		t.Errorf("the checkpoint has recompute %q, error %v", j.Model.Recompute, err)
	}
}

// A run that is interrupted and resumed in another process ends bit for bit as one that is not.
func TestTrainInterruptAndResume(t *testing.T) {
	dir := t.TempDir()
	first, whole, log := filepath.Join(dir, "first"), filepath.Join(dir, "whole"), filepath.Join(dir, "log")
	text := filepath.Join(dir, "text")
	writeFile(t, text, strings.Repeat("to be or not to be, that is the question. ", 9))
	args := append(slices.Clone(small), "--text", text, "--batch", "2", "--seed", "3", "--dropout", "0.1")
	stopped := interrupted(t, first, 7, func(p *process) {
		inUse := fmt.Sprintf("checkpoint: %s is in use by process %d on", first, p.Process.Pid)
		if _, err := ran(t, "train", "--resume", "--checkpoint", first); err == nil ||
			!strings.Contains(err.Error(), inUse) {
			t.Errorf("a second run in the folder: error %v, want %q", err, inUse)
		}
	}, append(args, "--log", log)...)
	to := strconv.Itoa(stopped + 3)
	second := trained(t, "train", "--resume", "--checkpoint", first, "--steps", to, "--log", log, "--recompute", "none",
		"--activation", "usual")
	want := trained(t, append(args, "--checkpoint", whole, "--steps", to)...)
	if len(second.Losses) != 3 || !slices.Equal(second.Losses, want.Losses[stopped:]) || second.FirstStep != stopped+1 {
		t.Errorf("losses %v from step %d, without a stop %v", second.Losses, second.FirstStep, want.Losses[stopped:])
	}
	file, before := tensorsOf(t, first, stopped+3)
	if _, wanted := tensorsOf(t, whole, stopped+3); !slices.Equal(before, wanted) {
		t.Error("the checkpoints differ")
	}
	checkLog(t, log, want.Losses, 0)

	t.Run("errors", func(t *testing.T) {
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"--resume", "--checkpoint", first, "--batch", "4"}, "--batch=4: the run in"},
			{[]string{"--resume", "--checkpoint", first, "--d", "32"}, "--d=32: the run in"},
			{[]string{"--resume", "--checkpoint", first, "--dropout", "0"}, `--dropout=0: the run in`},
			{[]string{"--resume", "--checkpoint", first, "--gated"}, `has "false"`},
			{[]string{"--resume", "--checkpoint", first, "--recompute", "block"}, `--recompute=block: the run in`},
			{[]string{"--resume", "--checkpoint", first, "--lr", "NaN"}, "--lr=NaN: the run in"},
			{[]string{"--resume", "--checkpoint", first, "--log", text}, "not the log of a run"},
			{[]string{"--resume", "--checkpoint", first, "--steps", "1"}, "--steps=1"},
			{[]string{"--checkpoint", first}, "continue it with --resume"},
			{[]string{"--resume", "--checkpoint", filepath.Join(dir, "none")}, "none"},
		} {
			if _, err := ran(t, append([]string{"train"}, c.args...)...); err == nil || !strings.Contains(err.Error(),
				c.want) {
				t.Errorf("%q: %v, want %q", c.args, err, c.want)
			}
		}
		// A damaged checkpoint is refused, and stays as it is; so is one of a text that has changed.
		damaged := slices.Clone(before)
		damaged[len(damaged)/2] ^= 4
		must.Do(t, os.WriteFile(file, damaged, 0o644))
		if _, err := ran(t, "train", "--resume", "--checkpoint", first); err == nil || !strings.Contains(err.Error(),
			filepath.Base(file)) {
			t.Errorf("one bit flipped: %v", err)
		}
		if _, now := tensorsOf(t, first, stopped+3); !slices.Equal(now, damaged) {
			t.Error("the damaged checkpoint was overwritten")
		}
		writeFile(t, text, "another text, which is as good as any")
		if _, err := ran(t, "train", "--resume", "--checkpoint", whole); err == nil || !strings.Contains(err.Error(),
			"has changed since") {
			t.Errorf("another text: %v", err)
		}
	})
}

// A run whose loss is not finite ends with an error, and what was saved before stays.
func TestTrainDiverges(t *testing.T) {
	dir := t.TempDir()
	_, stderr, status := shardbook(t, nil, append(small, "--lr", "1e30", "--checkpoint", dir, "--save-every", "1")...)
	if status != 1 || !strings.Contains(stderr, "the loss is") || !strings.Contains(stderr, "--lr") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if saved, _ := filepath.Glob(filepath.Join(dir, "step-*")); len(saved) == 0 {
		t.Error("no checkpoint is left")
	}
}

// Sparse rows with too little room make gradients NaN: the run says so, whether every step is skipped then or a loss is
// NaN.
func TestTrainTooLittleRoom(t *testing.T) {
	_, skipped := ran(t, append(slices.Clone(small), "--steps", "2", "--activation", "relu", "--compress-relu",
		"CSR:0.01", "--loss-scale", "dynamic")...)
	j := job.New()
	j.Model.CompressReLU = "csr:0.01"
	_, diverged := (&training{job: j, began: 1}).record(metrics{Metrics: train.Metrics{Loss: math.NaN()}})
	for want, err := range map[string]error{"all 2 steps were skipped": skipped,
		"step 2: the loss is NaN": diverged} {
		if said := fmt.Sprint(err); !strings.Contains(said, want) || !strings.Contains(said,
			"--compress-relu=csr:0.01 may have too little room") || strings.Contains(said, "--lr") {
			t.Errorf("%s, want %q", said, want)
		}
	}
}

// What is lossless changes no loss by a bit. A resumed run knows its codecs by any of their names.
func TestTrainCompress(t *testing.T) {
	dir := t.TempDir()
	args := append(slices.Clone(small), "--steps", "3", "--activation", "relu")
	want := trained(t, args...)
	got := trained(t, append(args, "--compress", "Dense", "--compress-relu", "csr:1", "--checkpoint", dir)...)
	if !slices.Equal(got.Losses, want.Losses) {
		t.Errorf("losses %v, without compression %v", got.Losses, want.Losses)
	}
	resume := []string{"train", "--resume", "--checkpoint", dir}
	if again := trained(t, append(resume, "--compress", "DENSE", "--compress-relu",
		"CSR:1.0")...); again.FirstStep != 4 {
		t.Errorf("resumed at step %d, want 4", again.FirstStep)
	}
	if _, err := ran(t, append(resume, "--compress-relu", "csr:0.9")...); err == nil || !strings.Contains(err.Error(),
		`--compress-relu=csr:0.9: the run in`) {
		t.Errorf("another codec: %v", err)
	}
}

// A run that skips steps, whose gradients have no finite norm, is logged as any other. A row of one token gets from
// 65536 to a scale that float16 holds by such steps.
func TestTrainLogsSkippedSteps(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	r := trained(t, append(slices.Clone(small), "--steps", "12", "--precision", "fp16", "--loss-scale", "dynamic",
		"--seq", "1", "--batch", "1", "--clip", "1", "--log", log)...)
	lines, err := os.ReadFile(log)
	if err != nil || strings.Count(string(lines), "\n") != 12 || r.Skipped == 0 || strings.Count(string(lines),
		`"skipped":true`) != r.Skipped {
		t.Errorf("%d steps skipped, error %v, log:\n%s", r.Skipped, err, lines)
	}
}

// Interrupted while its only step is compiled, the run does the step and saves it.
func TestTrainInterruptedAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	p := begin(t, nil, slices.Concat([]string{os.Args[0]}, small,
		[]string{"--steps", "1", "--checkpoint", dir, "--grace", "1h"})...)
	p.until("it makes the folder", func() bool { return exists(dir) })
	p.Process.Signal(os.Interrupt)
	p.status()
	saved, _ := filepath.Glob(filepath.Join(dir, "step-*"))
	// The signal comes before the step, and then step 0 is saved, or in it.
	if len(saved) != 1 {
		t.Errorf("checkpoints %q: %s", saved, p.output())
	}
}

// Without --json, people get a chart, a table and the text.
func TestTrainForPeople(t *testing.T) {
	stdout, stderr, status := shardbook(t, nil, append(small, "--steps", "12", "--precision", "bf16", "--warmup", "3",
		"--schedule", "cosine", "--clip", "1", "--sample", "20", "--prompt", "In an all", "--temperature", "0")...)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"loss in nats, steps 1 to 12", "┤", "parameters    ", "optimizer ", "\n\nIn an all"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for x, want := range map[float64]string{0.12345: "0.123", 99.94: "99.9", 2754: "2754", 53_120: "53 k",
		1.2e6: "1200 k"} {
		if got := short(x); got != want {
			t.Errorf("%g as %q, want %q", x, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1_388_428: "1.324 MiB",
		5 << 40: "5120 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d bytes as %q, want %q", n, got, want)
		}
	}
}
