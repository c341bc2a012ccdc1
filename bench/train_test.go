package main

import (
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

func TestTrainingCases(t *testing.T) {
	names := func(override trainSize) string {
		t.Helper()
		cases, err := (&training{override: override}).cases()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range cases {
			if got := len(c.want); override == (trainSize{}) && got != trainFirst {
				t.Errorf("%s: %d losses to compare with, want %d", c.name, got, trainFirst)
			}
			names = append(names, c.name)
		}
		return strings.Join(names, "; ")
	}
	for want, override := range map[string]trainSize{
		"layers 2, width 128, heads 4, 8×64 tokens; layers 4, width 256, heads 8, 16×256 tokens": {},
		"layers 1, width 128, heads 4, 8×64 tokens; layers 1, width 256, heads 8, 16×256 tokens": {Layers: 1},
		"layers 1, width 8, heads 2, 3×5 tokens":                                                 {Layers: 1, Width: 8, Heads: 2, Seq: 5, Batch: 3},
	} {
		if got := names(override); got != want {
			t.Errorf("%+v: %q, want %q", override, got, want)
		}
	}
}

// TestTrainingOurs trains the small model, whose losses are known.
func TestTrainingOurs(t *testing.T) {
	records, err := run(t, &training{override: trainSizes[0]}, settings{rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 2 { // with glibc as it is, and told to keep memory
		t.Fatalf("%d records, want 2", len(records))
	}
	state := 3 * int64(trainSizes[0].config().Params().Bytes()) // the parameters and AdamW's two states
	for _, r := range records {
		if r.Arguments < state || r.Temporary <= 0 {
			t.Errorf("%s: memory %+v, the state alone is %d", r.Impl, r.footprint, state)
		}
	}
}

// TestTrainingPeers trains a model whose losses are not known: all must agree. No
// two of its dimensions are alike.
func TestTrainingPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	b := &training{override: trainSize{Layers: 2, Width: 24, Heads: 3, Seq: 10, Batch: 5}}
	records, err := run(t, b, settings{rounds: 2, peers: true, python: python})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 5 {
		t.Fatalf("%d records, want 5", len(records))
	}
	for _, r := range records {
		if r.Ratio <= 0 || r.RatioMin <= 0 {
			t.Errorf("%s has no ratio: %+v", r.Impl, r)
		}
		if compiled := r.Impl != "torch"; compiled != (r.TempRatio > 0) || compiled == (r.PeakRSS > 0) {
			t.Errorf("%s: memory %+v, temp_ratio %v", r.Impl, r.footprint, r.TempRatio)
		}
	}
}

// TestTrainingCharts reads the table made of times and sizes that are made up.
func TestTrainingCharts(t *testing.T) {
	compiled := footprint{Arguments: 4 << 20, Temporary: 8 << 20}
	records := compare("train", testCase{name: "one"}, []result{
		{implementation{name: "xla", role: ours}, sampleTimes{10, 20}, compiled},
		{implementation{name: "jax", role: peer}, sampleTimes{20, 30}, footprint{Arguments: 4 << 20, Temporary: 16 << 20, Outputs: 4 << 20}},
		{implementation{name: "torch", role: peer}, sampleTimes{5, 20}, footprint{PeakRSS: 1 << 30}},
	})
	var text strings.Builder
	for _, c := range (&training{}).charts(records) {
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		text.WriteString(c.Text())
	}
	for _, want := range []string{
		"one xla 15 0.75 0.50 8.0 2.00 12.0 2.00 –", // the best peer of each round took 5 and 20
		"one jax 25 1.75 1.50 16.0 2.00 24.0 2.00 –",
		"one torch 12.5 0.75 0.50 – – – – 1024.0",
		"one 1.75 2 0.75",
	} {
		if got := strings.Join(strings.Fields(text.String()), " "); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
