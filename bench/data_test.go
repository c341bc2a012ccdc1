package main

import (
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// TestDataOurs trains a small model in all of our ways: their losses must agree.
func TestDataOurs(t *testing.T) {
	systest.FullOnly(t, "what data parallelism costs")
	b := &data{training{override: trainSize{Layers: 1, Width: 24, Heads: 3, Seq: 10, Batch: 4}}}
	records, err := run(t, b, settings{rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "xla", "spmd-2 over xla", "spmd-4 over xla", "ranks-2 over xla")
}

func TestDataPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	b := &data{training{override: trainSize{Layers: 1, Width: 24, Heads: 3, Seq: 10, Batch: 8}}}
	records, err := run(t, b, settings{rounds: 2, peers: true, python: python, only: []string{"spmd-2", "ddp-2", "jax-4"}})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "xla", "spmd-2 over xla", "torch", "ddp-2 over torch", "jax", "jax-4 over jax")
}

// checkCosts looks for records of these implementations, each but the bases with a cost.
func checkCosts(t *testing.T, records []record, want ...string) {
	t.Helper()
	var got []string
	for _, r := range records {
		name := r.Impl
		if r.Over != "" {
			name += " over " + r.Over
		}
		got = append(got, name)
		if hasBase := r.Over != ""; hasBase != (r.Cost > 0) || hasBase != (r.MinCost > 0) || r.MedianMS <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if got, want := strings.Join(got, ", "), strings.Join(want, ", "); got != want {
		t.Errorf("measured %s; want %s", got, want)
	}
}

// TestDataCosts compares times that are made up.
func TestDataCosts(t *testing.T) {
	records := compare("data", testCase{name: "one"}, []result{
		{implementation{name: "xla", role: base}, sampleTimes{10, 20, 40}, footprint{}},
		{implementation{name: "spmd-2", role: ours, over: "xla"}, sampleTimes{20, 60, 40}, footprint{}},     // 2, 3, 1
		{implementation{name: "ddp-2", role: peer, over: "torch"}, sampleTimes{400, 120, 100}, footprint{}}, // 4, 1.5, 1
		{implementation{name: "torch", role: base}, sampleTimes{100, 80, 100}, footprint{}},
		{implementation{name: "jax-2", role: peer, over: "missing"}, sampleTimes{1, 1, 1}, footprint{}},
	})
	ours, ddp, orphan := records[1], records[2], records[4]
	for _, test := range []struct {
		what      string
		got, want float64
	}{
		{"our least time", ours.MinMS, 20},
		{"our cost", ours.Cost, 2},
		{"our cost of least times", ours.MinCost, 2},
		{"the peer's cost", ddp.Cost, 1.5},
		{"the peer's cost of least times", ddp.MinCost, 1.25}, // 100 over 80
		{"our ratio", ours.Ratio, 1},                          // of 4/2, 1.5/3, 1/1
		{"our least ratio", ours.RatioMin, 0.5},
		{"our ratio of least times", ours.MinRatio, 0.625},
		{"the peer's ratio", ddp.Ratio, 1},
		{"the cost without a base", orphan.Cost, 0},
		{"the ratio without a base", orphan.Ratio, 0},
		{"the base's ratio", records[0].Ratio, 0},
	} {
		if test.got != test.want {
			t.Errorf("%s is %v, want %v", test.what, test.got, test.want)
		}
	}
	var text strings.Builder
	text.WriteString(ratioText(records))
	for _, c := range (&data{}).charts(records) {
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		text.WriteString(c.Text())
	}
	for _, want := range []string{
		"The best peer's cost over ours",
		"one ddp-2 1.00 (0.50)",
		"one xla 20 – – – –",
		"one spmd-2 40 xla 2.000 2.000 1.00 0.62",
		"one 2 1.5",
	} {
		if got := strings.Join(strings.Fields(text.String()), " "); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

func TestDataBatches(t *testing.T) {
	if _, err := (&data{training{override: trainSize{Batch: 6}}}).cases(); err == nil || !strings.Contains(err.Error(), "a batch of 6 sequences") {
		t.Errorf("error %v for a batch that 4 devices do not divide", err)
	}
}
