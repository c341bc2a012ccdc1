package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// A run that goes on from layout to layout learns what one device learns, but for rounding.
func TestTrainLayouts(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	args := append(slices.Clone(together), "--layers", "2")
	want := deeper(t)
	for i, way := range []struct {
		args string
		axes []string // of what is sent
	}{
		{"--pipe 2 --data 2 --tensor 2 --zero 1 --microbatches 2", []string{"data", "pipe", "tensor"}},
		{"--pipe 0 --tensor 0 --zero 3 --data 1 --replicas 2 --seq-parallel 2 --accumulate 2",
			[]string{"ring", "replica"}},
		{"--pipe 2 --schedule gpipe --zero 0 --seq-parallel 0 --data 1 --tensor 2 --tensor-sequence --replicas 0 " +
			"--recompute-stages " +
			"--device-memory 1GB --sample 3 --temperature 0", []string{"pipe", "tensor"}},
	} {
		run := []string{"train", "--resume", "--checkpoint", folder}
		if i == 0 {
			run = append(args, "--checkpoint", folder)
		}
		r := goesOn(t, want, i, i+1, append(run, strings.Fields(way.args)...)...)
		for _, axis := range way.axes {
			if r.SentByAxis[axis] <= 0 {
				t.Errorf("%s: sent %v, want something along %s", way.args, r.SentByAxis, axis)
			}
		}
		if (r.Pipeline != nil) != (i != 1) {
			t.Errorf("%s: sent %v, pipeline %+v", way.args, r.SentByAxis, r.Pipeline)
		}
		if i == 2 && r.Text != want.Text {
			t.Errorf("%s: the text is %q, of one device %q", way.args, r.Text, want.Text)
		}
	}
}

// What one technique has goes together with the others, for what one device learns but for rounding.
func TestTrainTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("schedule mine\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	want := oneDevice(t).Losses[:2]
	for _, c := range systest.OfFull(t, 3, []struct {
		flags  string
		within float64
	}{
		{"--pipe 2 --data 2 --microbatches 2 --bucket-bytes 20kB --compress-gradients bf16", 1e-3},
		{"--pipe 2 --replicas 4 --data 1 --microbatches 2 --zero 3 --prefetch 1 --shards 2 --cut measured", 1e-5},
		{"--tensor 2 --schedule-file " + file + " --tensor-partition", 1e-5},
		{"--tensor 2 --device-memory 80GB", 1e-5},
		{"--data 2 --zero 3 --shards 1 --sync ranks", 1e-5},
		{"--replicas 2 --tensor 2 --sync naive --accumulate 2", 1e-5},
		{"--tensor 2 --accumulate 2 --trace " + file + ".json", 1e-5},
		{"--replicas 2 --link 1e9", 1e-5},
		{"--tensor 2 --sync bucket --bucket-bytes 20kB", 1e-5},
		{"--data 2 --sync ranks", 1e-5},
		{"--data 2 --offload-optimizer", 1e-5},
		{"--pipe 2 --replicas 2 --microbatches 2 --zero 1 --offload-optimizer", 1e-5},
		{"--seq-parallel 2 --seq-ranks --zero 1", 1e-5},
		{"--seq-parallel 4 --seq-ranks --seq-method hybrid --seq-ulysses 2 --pipe 2 --microbatches 2", 1e-5},
		{"--pipe 2 --data 2 --tensor 2 --cut measured --sync overlap --microbatches 2", 1e-5},
	}) {
		r := trained(t, slices.Concat(together, []string{"--steps", "2"}, strings.Fields(c.flags))...)
		if !near(r.Losses, want, c.within) {
			t.Errorf("%s: losses %v, on one device %v", c.flags, r.Losses, want)
		}
	}
	// Local SGD averages parameters, and has the losses of no other run but the first.
	r := trained(t, slices.Concat(small,
		strings.Fields("--lr 0.01 --steps 2 --pipe 2 --data 2 --microbatches 2 --every 2"))...)
	if !near(r.Losses[:1], want[:1], 1e-5) || !near(r.Losses, want, 1e-2) {
		t.Errorf("local SGD: losses %v, on one device %v", r.Losses, want)
	}
}
