package main

import (
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// tinyHosts is a benchmark that is done soon.
func tinyHosts() *hosts {
	return &hosts{training: training{override: trainSize{Layers: 1, Width: 24, Heads: 3, Seq: 10, Batch: 4}}}
}

// TestHostsOurs trains a small model in one process and in two: their losses must agree.
func TestHostsOurs(t *testing.T) {
	systest.FullOnly(t, "what data parallelism between processes costs")
	systest.OpenMPI(t)
	records, err := run(t, tinyHosts(), settings{rounds: 1, only: []string{"mpi-tcp-2", "rank"}})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "xla", "mpi-tcp-2 over xla", "rank over xla")
}

func TestHostsPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	systest.OpenMPI(t)
	records, err := run(t, tinyHosts(), settings{rounds: 2, peers: true, python: python, only: []string{"mpi-2", "ddp-2"}})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "xla", "mpi-2 over xla", "torch", "ddp-2 over torch")
}

// TestHostsCharts reads the tables made of times that are made up.
func TestHostsCharts(t *testing.T) {
	results := []result{
		{implementation{name: "xla", role: base}, sampleTimes{10, 10, 10}, footprint{}},
		{implementation{name: "mpi-2", role: ours, over: "xla"}, sampleTimes{16, 20, 40}, footprint{}}, // 1.6, 2, 4
		{implementation{name: "rank", role: variant, over: "xla"}, sampleTimes{11, 12, 13}, footprint{}},
		{implementation{name: "torch", role: base}, sampleTimes{100, 100, 100}, footprint{}},
		{implementation{name: "ddp-2", role: peer, over: "torch"}, sampleTimes{320, 250, 320}, footprint{}}, // 3.2, 2.5, 3.2
	}
	text := func(results []result) string {
		var text strings.Builder
		for _, c := range (&hosts{}).charts(compare("hosts", testCase{name: "one"}, results)) {
			if err := c.Err(); err != nil {
				t.Fatal(err)
			}
			text.WriteString(c.Text())
		}
		return strings.Join(strings.Fields(text.String()), " ")
	}
	got := text(results)
	for _, want := range []string{
		// The rounds' ratios are 1.6/3.2, 2/2.5 and 4/3.2; that of the least times is 1.6/2.5.
		"one 2.000 1.200 0.50 3.200 0.31 0.800 1.250 0.640",
		"one mpi-2 20 xla 2.000 1.600 1.25 1.56",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if alone := text(results[:3]); strings.Contains(alone, "theirs") || !strings.Contains(alone, "one mpi-2 20 xla 2.000 1.600 – –") {
		t.Errorf("without peers:\n%s", alone)
	}
}

func TestHostsCases(t *testing.T) {
	cases, err := (&hosts{small: true}).cases()
	if err != nil || len(cases) != 1 || cases[0].name != trainSizes[0].String() {
		t.Errorf("the small model only: %d cases, %v", len(cases), err)
	}
	odd := &hosts{training: training{override: trainSize{Batch: 5}}}
	if _, err := odd.cases(); err == nil || !strings.Contains(err.Error(), "a batch of 5 sequences") {
		t.Errorf("error %v for a batch that 2 processes do not divide", err)
	}
}
