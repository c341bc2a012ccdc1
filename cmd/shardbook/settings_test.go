package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/spf13/pflag"
)

// A flag's help is one line, under the heading of its group.
func TestHelp(t *testing.T) {
	for command, groups := range map[string][]string{
		"train":    {"Model", "Data", "Optimizer", "Precision", "Memory", "Layout", "Pipeline", "Run", "Output"},
		"estimate": {"Model", "Data", "Optimizer", "Precision", "Memory", "Layout", "Pipeline", "Run", "Output"},
		"schedule": {"Pipeline", "Run", "Output"},
		"launch":   {"Hosts", "Run"},
		"lab":      nil, "notebooks": nil, "doctor": nil, "setup": nil,
	} {
		text := must.Get(ran(t, command, "--help"))(t)
		var found []string
		for line := range strings.Lines(text) {
			if heading, ok := strings.CutSuffix(line, " flags:\n"); ok {
				found = append(found, heading)
			}
			if n := utf8.RuneCountInString(line); strings.HasPrefix(line, "      --") && n > 111 {
				t.Errorf("%s: a line of %d columns: %s", command, n-1, line)
			}
		}
		if !slices.Equal(found, groups) {
			t.Errorf("%s has the groups %q, want %q", command, found, groups)
		}
	}
}

// What --print-config prints is what was given, and can be given.
func TestPrintConfig(t *testing.T) {
	lines := [][]string{
		append([]string{"train", "--resume", "--checkpoint", "run"}, strings.Fields(
			"--layout pipe=2,data=2,tensor=2,zero=1 --schedule ZB-H1 --cut 3,2 --bucket-bytes 8MB --warmup 3 --sync "+
				"ranks --json")...),
		strings.Fields("train --reference --schedule cosine --steps 7 --grace 1m --prompt 1 --text reference --top-k " +
			"3"),
		strings.Fields("schedule --kind search --memory 3.5 --cost F=1:2,B=2 --stages 2"),
		{"train"},
	}
	for _, line := range runs {
		lines = append(lines, strings.Fields("estimate "+line))
	}
	path := filepath.Join(t.TempDir(), "run.yaml")
	for _, line := range lines {
		printed, err := ran(t, append(line, "--print-config")...)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		writeFile(t, path, printed)
		again, err := ran(t, line[0], "--config", path, "--print-config")
		if err != nil || again != printed {
			t.Errorf("%q is printed as\n%s\nand that, error %v, as\n%s", line, printed, err, again)
		}
		cmd, args, err := newCommand().Find(line)
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		must.Do(t, err)
		cmd.Flags().Visit(func(f *pflag.Flag) {
			value := strings.Trim(f.Value.String(), "[]")
			if name := f.Name; name != "layout" && value != "" && !strings.Contains(printed, "\n"+name+": ") {
				t.Errorf("%q: no %s=%s in\n%s", line, name, value, printed)
			}
		})
	}
}

// Settings of a file go behind flags, and what is wrong with them is said with the file's line.
func TestConfig(t *testing.T) {
	file := files(t)
	run := file("run.yaml", "layers: 1\nd: 16\nseq: 8\ntext: reference\nbatch: 24\nno-bias: true\noptimizer: "+
		"momentum\nlr: 0.01\nclip: 1\nsteps: 9\nlayout: data=2\n")
	got, want := trained(t, "train", "--config", run, "--steps", "2").Losses, oneDevice(t).Losses[:2]
	if !near(got, want, 1e-5) {
		t.Errorf("losses %v, on one device %v", got, want)
	}
	for text, want := range map[string]string{
		"layers: 4\nheads: 5":     "run.yaml:2: gpt: --heads is 5",
		"precision: fp7":          "run.yaml:1: --precision: ",
		"\nlayout: data=3":        "--batch: a batch of 16 sequences for 3 data-parallel devices",
		"steps: 0":                "run.yaml:1: --steps=0: want at least 1",
		"zero: 4\ndata: 2":        "run.yaml:1: --zero is 4",
		"schedule: gpipe":         "run.yaml:1: --schedule=gpipe changes nothing without --pipe",
		"learning-rate: 4":        `run.yaml:1: "learning-rate" is not a setting`,
		"checkpoint: ''\nd: many": `run.yaml:2: d is "many": want a whole number`,
	} {
		if out, err := ran(t, "train", "--config", file("run.yaml", text)); err == nil ||
			!strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%q: printed %q, error %v, want %q", text, out, err, want)
		}
	}
	settings := file("estimate.toml", "params = 7.5e9\ndata = 8\nlayout = \"zero=1\"\n")
	if e := estimated(t, "--config", settings, "--data", "64"); e.Total != 31_406_250_000 {
		t.Errorf("%d bytes, want 31406250000", e.Total)
	}
}

// The shell completes the values of flags that have choices, and names of files.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"train --schedule zb":    "zb-h1\nzb-h2\nzb-v\n:4\n",
		"train --sync a":         "async\nauto\n:4\n",
		"train --precision bf":   "bf16\nbf16-pure\n:4\n",
		"train --optimizer ada":  "adafactor\nadam\nadam8bit\nadamw\n:4\n",
		"train --norm r":         "rmsnorm\n:4\n",
		"train --zero ":          "0\n1\n2\n3\n:4\n",
		"train --engine ":        "local\nmpi\n:4\n",
		"train --checkpoint ":    ":16\n", // folders
		"train --config ":        "yaml\nyml\njson\ntoml\n:8\n",
		"train --chart ":         "html\nsvg\n:8\n",
		"estimate --schedule in": "interleaved\n:4\n",
		"estimate --device H1":   "H100 SXM\n:4\n",
		"schedule --kind se":     "search\n:4\n",
		"train --plugin c":       "cpu\ncuda\n:4\n",
	} {
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		if got, err := ran(t, args...); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, error %v, want %q", line, got, err, want)
		}
	}
}

// Before a run starts it prints what it will be and need, and in the end the loss is where people look for it.
func TestTrainShows(t *testing.T) {
	dir := t.TempDir()
	page, image, events := filepath.Join(dir, "loss.html"), filepath.Join(dir, "loss.svg"), filepath.Join(dir, "runs")
	line := append(slices.Clone(small), "--steps", "2", "--layers", "2", "--layout",
		"pipe=2,data=2,tensor=2,zero=1,microbatches=2", "--tensorboard", events)
	for range 2 { // the second time over the first one's chart
		out := must.Get(ran(t, append(line, "--chart", page)...))(t)
		for _, want := range []string{"model         2 blocks of width 16 with 4 heads: ",
			"\nlayout        pipe=2,data=2,tensor=2,zero=1: 8 devices, 2 ranks",
			"\nschedule      1f1b, 2 micro-batches, bubble 33%", "\nmemory        of a device, predicted: ",
			"\ntraffic       in a step, predicted, by axis: data "} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
	must.Get(ran(t, append(slices.Clone(small), "--steps", "1", "--chart", image)...))(t)
	for path, want := range map[string]string{page: "<title>training loss</title>", image: "<svg"} {
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %.80q, error %v", path, text, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(events, "events.out.tfevents.*"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	for _, want := range []string{"train/loss", "train/learning_rate", "performance/tokens_per_s",
		"performance/device_memory_bytes"} {
		if err != nil || strings.Count(string(text), want) != 2 {
			t.Errorf("%s: error %v, %d of %s, want 2", files[0], err, strings.Count(string(text), want), want)
		}
	}
	for _, c := range []struct{ flag, path, want string }{
		{"--chart", filepath.Join(dir, "loss.png"), "want a file with the extension .html or .svg"},
		{"--tensorboard", page, "--tensorboard: "},
	} {
		if _, err := ran(t, append(slices.Clone(small), "--steps", "1", c.flag, c.path)...); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error %v", c.flag, c.path, err)
		}
	}
}
