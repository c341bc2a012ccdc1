package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// TestTensorOurs trains a small model whose layers, or sequences, two devices share: their losses must agree.
func TestTensorOurs(t *testing.T) {
	b := &tensorBench{training{override: trainSize{Layers: 1, Width: 16, Heads: 4, Seq: 8, Batch: 2}}}
	records, err := run(t, b, settings{rounds: 1, only: []string{"tensor-2", "sequence-2", "ring-2"}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range records {
		names = append(names, r.Impl)
		if variant := r.Impl != "tensor-2"; r.MedianMS <= 0 || variant != (r.Ratio > 0) {
			t.Errorf("%+v", r)
		}
	}
	if got, want := strings.Join(names, " "), "tensor-2 sequence-2 ring-2"; got != want {
		t.Errorf("measured %s; want %s", got, want)
	}
}

// TestTensorPeers has JAX learn the same with its matrices sharded.
func TestTensorPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	b := &tensorBench{training{override: trainSize{Layers: 2, Width: 24, Heads: 4, Seq: 8, Batch: 3}}}
	records, err := run(t, b, settings{rounds: 1, peers: true, python: python, only: []string{"tensor-2", "jax-2", "tensor-4", "jax-4"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"tensor-2", "jax-2", "tensor-4", "jax-4"} {
		if i >= len(records) {
			t.Fatalf("%d records, want 4", len(records))
		}
		if r := records[i]; r.Impl != want || r.Ratio <= 0 || r.MemoryRatio <= 0 || !strings.HasSuffix(r.Case, want[len(want)-1:]+" devices") {
			t.Errorf("%+v, want one of %s", r, want)
		}
	}
}

func TestTensorCases(t *testing.T) {
	for want, override := range map[string]trainSize{
		"6 heads, want a multiple of 4":         {Width: 24, Heads: 6},
		"sequences of 12, want a multiple of 8": {Seq: 12},
	} {
		if _, err := (&tensorBench{training{override: override}}).cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %q", override, err, want)
		}
	}
	cases, err := newTensor().cases()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"8×64 tokens, 2 devices", "8×64 tokens, 4 devices", "16×256 tokens, 2 devices", "16×256 tokens, 4 devices"} {
		if c := cases[i]; !strings.HasSuffix(c.name, want) || !strings.HasSuffix(want, c.class) || len(c.want) != trainFirst {
			t.Errorf("case %q of class %q with %d losses to compare with, want %q", c.name, c.class, len(c.want), want)
		}
	}
}

// TestTensorCharts draws records of which each case has its own implementations.
func TestTensorCharts(t *testing.T) {
	var records []record
	for _, n := range tensorDevices {
		name := func(of string) string { return fmt.Sprintf("%s-%d", of, n) }
		records = append(records, compare("tensor", testCase{name: "one, " + devicesClass(n)}, []result{
			{implementation{name: name("tensor"), role: ours, class: devicesClass(n)}, sampleTimes{10, 20}, footprint{}},
			{implementation{name: name("ring"), role: variant, class: devicesClass(n)}, sampleTimes{5, 5}, footprint{}},
			{implementation{name: name("jax"), role: peer, class: devicesClass(n)}, sampleTimes{20, 10}, footprint{}},
		})...)
	}
	wantText(t, ratioText(records), (&tensorBench{}).charts(records),
		"one, 2 devices tensor-2 15 1.25 0.50", "one, 4 devices ring-4 5 0.38 0.25", "one, 4 devices jax-4 15 1.25 0.50")
}
