package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
		{"--pipe 0 --tensor 0 --zero 3 --data 1 --replicas 2 --seq-parallel 2 --accumulate 2", []string{"ring", "replica"}},
		{"--pipe 2 --schedule gpipe --zero 0 --seq-parallel 0 --data 1 --tensor 2 --tensor-sequence --replicas 0 --recompute-stages " +
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

func TestTrainLayoutRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--replicas 2":                                  "--replicas and --device-memory are for layouts of several of",
		"--tensor 2 --device-memory 80GB":               "--replicas and --device-memory are for layouts of several of",
		"--tensor 2 --replicas -1":                      "--replicas=-1",
		"--tensor 2 --pipe 2 --sync bucket":             "--sync=bucket and a layout of several ways (--pipe=2, --tensor=2)",
		"--tensor 2 --pipe 2 --every 2":                 "--every and a layout of several ways",
		"--tensor 2 --pipe 2 --accumulate 2":            "--accumulate and a layout of several ways (--pipe=2, --tensor=2), whose pipeline has --microbatches",
		"--tensor 2 --zero 1 --microbatches 2":          "--microbatches: there is no pipeline",
		"--zero 3 --pipe 2 --prefetch 1":                "--prefetch and a layout of several ways",
		"--zero 3 --pipe 2 --cut measured":              "--cut and a layout of several ways",
		"--tensor 2 --pipe 2 --schedule pipedream":      "updates while micro-batches are under way",
		"--tensor 2 --zero 1 --data 3":                  "--batch=8 cannot be divided into equal parts",
		"--tensor 2 --pipe 9":                           "--pipe=9: 4 blocks",
		"--tensor 2 --pipe 3":                           "needs 3 blocks, and the model has 2",
		"--tensor 2 --pipe 2 --device-memory 10kB":      "a device of stage 1 needs",
		"--tensor 2 --pipe 2 --data 256":                "multiply to 1024 devices",
		"--tensor 2 --data 2 --zero 1 --optimizer lamb": "which is cut between the devices of the tensor axis and sharded by ZeRO",
	} {
		cmd := newCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(slices.Concat(small, []string{"--layers", "2", "--batch", "8", "--steps", "1"}, strings.Fields(args)))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
