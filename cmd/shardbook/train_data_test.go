package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

// Two ranks that are interrupted, and go on in another process, end bit for bit as those of another form that are not.
// What they end with, and what they did, can be seen.
func TestTrainRanks(t *testing.T) {
	dir := t.TempDir()
	first, whole, traced := filepath.Join(dir, "first"), filepath.Join(dir, "whole"), filepath.Join(dir, "trace.json")
	args := append(slices.Clone(small), "--data", "2", "--accumulate", "2")
	cmd := exec.Command(os.Args[0], append(args, "--bucket-bytes", "20kB", "--checkpoint", first, "--steps", "1000000",
		"--save-every", "2", "--grace", "1h")...)
	cmd.Env = append(os.Environ(), envMain+"=1")
	var noise strings.Builder
	cmd.Stderr = &noise
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	for saved := false; !saved; time.Sleep(time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("the training has ended: %v, %s", err, noise.String())
		default:
			_, err := os.Stat(filepath.Join(first, "step-00000002"))
			saved = err == nil
		}
	}
	cmd.Process.Signal(os.Interrupt)
	if err := <-ended; err == nil || !strings.Contains(noise.String(), "continue with --resume") {
		t.Fatalf("interrupted: error %v, %s", err, noise.String())
	}
	stopped := newestStep(t, first)
	to := strconv.Itoa(stopped + 4)
	sample := []string{"--steps", to, "--sample", "4", "--temperature", "0"}
	got := trained(t, append([]string{"train", "--resume", "--checkpoint", first, "--bucket-bytes", "2e4", "--trace",
		traced}, sample...)...)
	want := trained(t, append(append(args, "--sync", "Naive", "--checkpoint", whole), sample...)...)
	if !slices.Equal(got.Losses, want.Losses[stopped:]) || got.FirstStep != stopped+1 || got.Text != want.Text {
		t.Errorf("losses %v from step %d, text %q; without a stop %v, %q", got.Losses, got.FirstStep, got.Text,
			want.Losses[stopped:], want.Text)
	}
	var states [2][]byte
	for i, folder := range []string{first, whole} {
		files, err := filepath.Glob(filepath.Join(folder, "step-*"+to, "*.safetensors"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		if states[i], err = os.ReadFile(files[0]); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(states[0], states[1]) {
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
	spans := tracedSpans(t, traced)
	for rank := range 2 {
		updates := 0
		for _, s := range trace.Of(spans, rank, trace.Compute) {
			if strings.HasPrefix(s.Name, "U") {
				updates++
			}
		}
		if updates != 3 {
			t.Errorf("rank %d has %d updates in the trace, want 3", rank, updates)
		}
	}
}

// Several devices train as one does, but for rounding, whether one program has them or a parameter server.
func TestTrainOneProgramOrServer(t *testing.T) {
	for _, way := range []string{"spmd", "auto"} {
		goesOn(t, oneDevice(t), 0, 3, append(slices.Clone(together), "--data", "2", "--sync", way)...)
	}
	goesOn(t, unclipped(t), 0, 3, append(slices.Clone(small), "--data", "4", "--sync", "ps", "--servers", "1")...)
}
