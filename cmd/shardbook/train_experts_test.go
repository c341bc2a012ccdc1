package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
)

// mixture trains a model with experts that compiles fast.
var mixture = append(slices.Clone(together), "--layers", "2", "--experts", "4", "--expert-hidden", "16")

// checkExperts holds the loads of a result, of these blocks, against each other. A sequence has 8 tokens, a batch 24.
func checkExperts(t *testing.T, r trainResult, blocks ...string) {
	t.Helper()
	var found []string
	most := int64(0)
	for _, l := range r.Experts {
		found = append(found, l.Block)
		all := int64(0)
		for _, n := range l.Tokens {
			all, most = all+n, max(most, n)
		}
		if want := int64(2 * 8 * 24); len(l.Tokens) != 4 || max(all-want, want-all) > 1 {
			t.Errorf("%s has tokens %v, in all not %d", l.Block, l.Tokens, want)
		}
	}
	if !slices.Equal(found, blocks) {
		t.Errorf("there are loads of %q, want %q", found, blocks)
	}
	if want := float64(most) / (2 * 8 * 24 / 4); math.Abs(r.Balance-want) > 0.02 {
		t.Errorf("the balance is %g, want %g: %+v", r.Balance, want, r.Experts)
	}
}

// A run with experts learns the same in each layout, which may change, and reports the experts' loads.
func TestTrainExperts(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	want := trainedOnce(t, append(slices.Clone(mixture), "--steps", "7", "--sample", "3", "--temperature", "0")...)
	checkExperts(t, want, "h0", "h1")
	resume := []string{"train", "--resume", "--checkpoint", folder, "--experts", "4", "--experts-per-token", "2",
		"--balance", "0.01", "--router", "softmax"}
	for i, way := range []struct{ flags, axis string }{
		{"--data 2 --tensor 2 --expert-parallel 2", "expert,tensor"},
		{"--data 4 --tensor 0 --expert-parallel 2 --zero 1", "expert"},
		{"--data 4 --zero 0 --expert-parallel 2 --replicas 1 --pipe 2", "expert"},
		{"--data 4 --pipe 0 --replicas 0 --expert-parallel 2", "expert"},
		{"--pipe 0 --replicas 0 --data 2 --zero 3 --sync ranks --expert-parallel 1", ""},
		{"--zero 0 --data 1 --tensor 2 --sync spmd", ""},
	} {
		run := append(resume, strings.Fields(way.flags)...)
		if i == 0 {
			run = slices.Concat(mixture, []string{"--checkpoint", folder}, strings.Fields(way.flags))
		}
		r := goesOn(t, want, i, i+1, run...)
		checkExperts(t, r, "h0", "h1")
		if way.axis != "" && r.SentByAxis[way.axis] == 0 {
			t.Errorf("%s sends %v", way.flags, r.SentByAxis)
		}
	}
	last := append(resume, "--steps", "7", "--data", "1", "--tensor", "0")
	same := func(a, b expertLoad) bool { return slices.Equal(a.Tokens, b.Tokens) }
	if r := trained(t, append(last, "--sample", "3", "--temperature", "0")...); r.Text != want.Text ||
		!slices.EqualFunc(r.Experts, want.Experts, same) {
		t.Errorf("the end is %+v, of a whole run on one device %+v", r, want)
	}
	if _, err := ran(t, append(slices.Clone(last), "--balance", "0")...); err == nil ||
		!strings.Contains(err.Error(), `--balance=0: the run in`) {
		t.Errorf("resumed without a loss that it had: %v", err)
	}
	c := gpt.Config{Layers: 2, Width: 16, Heads: 4, Seq: 8, Vocab: 256, NoBias: true}
	c.Experts.Experts, c.Experts.PerToken, c.Experts.Hidden = 4, 2, 16
	if n := cost.FromGPT(c).Params().Total(); int64(want.Params) != n || int64(c.Params().Size()) != n+2*4 {
		t.Errorf("%d parameters, want %d", want.Params, n)
	}
}

// With a capacity tokens are dropped, which people, logs and charts show.
func TestTrainExpertsForPeople(t *testing.T) {
	dir := t.TempDir()
	log, page, events := filepath.Join(dir, "log"), filepath.Join(dir, "loss.html"), filepath.Join(dir, "events")
	args := append(slices.Clone(mixture), "--dense-layers", "1", "--capacity", "1", "--router", "sigmoid", "--steps", "2",
		"--log", log, "--chart", page, "--tensorboard", events)
	stdout, stderr, status := shardbook(t, nil, args...)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for text, all := range map[string][]string{
		stdout: {", of which a token passes through ", ", with 2 of 4 experts\n", "\nmemory        of a device, predicted: ",
			"\nexperts       tokens for each in the last step", "\nh1            ", "% dropped\n"},
		stderr:                                 {", load 1.", "% dropped\n"},
		string(must.Get(os.ReadFile(log))(t)):  {`"balance":1.`, `"dropped":0.`},
		string(must.Get(os.ReadFile(page))(t)): {"balance of the experts", "tokens in the last step"},
	} {
		for _, want := range all {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in:\n%.2000s", want, text)
			}
		}
	}
	files := must.Get(filepath.Glob(filepath.Join(events, "*")))(t)
	if text := string(must.Get(os.ReadFile(files[0]))(t)); !strings.Contains(text, "experts/balance") ||
		!strings.Contains(text, "experts/dropped") {
		t.Errorf("TensorBoard gets %.500q", text)
	}
	if strings.Contains(stdout, "\nh0 ") || strings.Contains(stdout, "unknown") {
		t.Errorf("a block without experts, or what is not predicted:\n%s", stdout)
	}
	wide := expertLoad{"h0", []int64{9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13}, 0.25}
	if got, want := loadText(wide), "1 to 13, median 7   25.0% dropped"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A reference run may have experts, whose initial weights depend on the parameters' order alone.
func TestTrainReferenceExperts(t *testing.T) {
	args := []string{"train", "--reference", "--layers", "1", "--d", "16", "--heads", "4", "--seq", "8", "--batch", "4",
		"--steps", "1", "--experts", "4"}
	r := trained(t, args...)
	if len(r.Losses) != 1 || math.Abs(r.Losses[0]-math.Log(256)) > 0.1 {
		t.Errorf("losses %v, want about ln 256", r.Losses)
	}
	if _, err := ran(t, append(args, "--capacity", "1")...); err == nil ||
		!strings.Contains(err.Error(), "--capacity and --reference") {
		t.Errorf("a capacity: %v", err)
	}
}
