package main

import (
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/chart"
)

// TestZeroOurs trains a small model in some of our ways: their losses must agree.
func TestZeroOurs(t *testing.T) {
	b := &zeroBench{data{training{override: trainSize{Layers: 1, Width: 12, Heads: 3, Seq: 10, Batch: 4}}}}
	records, err := run(t, b, settings{rounds: 1, only: []string{"ranks-zero3-2", "zero3-2"}})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "ranks-2", "ranks-zero3-2 over ranks-2", "spmd-2", "zero3-2 over spmd-2")
}

func TestZeroPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	b := &zeroBench{data{training{override: trainSize{Layers: 1, Width: 24, Heads: 3, Seq: 10, Batch: 8}}}}
	records, err := run(t, b, settings{rounds: 2, peers: true, python: python, only: []string{"zero2-4", "fsdp-2", "jax-zero1-4", "jax-fsdp-4"}})
	if err != nil {
		t.Fatal(err)
	}
	checkCosts(t, records, "ddp-2", "fsdp-2 over ddp-2",
		"spmd-4", "jax-4", "jax-zero1-4 over jax-4", "jax-fsdp-4 over jax-4", "zero2-4 over spmd-4")
	for _, r := range records {
		if compared := r.Impl == "zero2-4" || r.Impl == "jax-zero1-4"; compared != (r.Ratio > 0) { // nobody else has a rival
			t.Errorf("%s has the ratio %v", r.Impl, r.Ratio)
		}
	}
}

// TestZeroCosts compares times that are made up: within classes only.
func TestZeroCosts(t *testing.T) {
	records := compare("zero", testCase{name: "one"}, []result{
		{implementation{name: "spmd-2", role: base}, sampleTimes{10, 20}, footprint{}},
		{implementation{name: "zero1-2", role: ours, class: splitStates, over: "spmd-2"}, sampleTimes{20, 40}, footprint{}},  // 2, 2
		{implementation{name: "zero3-2", role: ours, class: splitAll, over: "spmd-2"}, sampleTimes{40, 80}, footprint{}},     // 4, 4
		{implementation{name: "jax-zero1-2", role: peer, class: splitStates, over: "jax-2"}, sampleTimes{6, 6}, footprint{}}, // 3, 3
		{implementation{name: "fsdp-2", role: peer, class: splitAll, over: "jax-2"}, sampleTimes{16, 12}, footprint{}},       // 8, 6
		{implementation{name: "jax-2", role: base}, sampleTimes{2, 2}, footprint{}},
	})
	for i, want := range []float64{0, 1.5, 1.75, 1.5, 1.75, 0} {
		if got := records[i]; got.Ratio != want {
			t.Errorf("%s has the ratio %v, want %v", got.Impl, got.Ratio, want)
		}
	}
	wantText(t, ratioText(records), (&zeroBench{}).charts(records), "one jax-zero1-2, fsdp-2 1.50 (1.50) 1.75 (1.50)", "zero3-2 spmd-2 4.000 (4.000)", "fsdp-2 jax-2 7.000 (6.000)")
}

// TestZeroMemoryOurs takes no samples.
func TestZeroMemoryOurs(t *testing.T) {
	records, err := run(t, &zeroMemory{depths: []int{3}, width: 8}, settings{})
	if err != nil {
		t.Fatal(err)
	}
	want := record{Bench: "zero-memory", Case: "3 blocks, width 8, 8 rows", Impl: "zero3", Role: ours,
		details: details{Depth: 3, BlockBytes: 512, GradientBytes: 384}}
	if len(records) != 1 {
		t.Fatalf("%d records, want 1", len(records))
	}
	for _, r := range records {
		if r.Temporary < want.GradientBytes {
			t.Errorf("%d bytes of temporary memory, the gradients are %d", r.Temporary, want.GradientBytes)
		}
		r.footprint, r.Load1, r.Samples = footprint{}, 0, nil
		if !reflect.DeepEqual(r, want) {
			t.Errorf("got  %+v\nwant %+v", r, want)
		}
	}
}

// TestZeroMemoryPeers has all three learn the same.
func TestZeroMemoryPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	records, err := run(t, &zeroMemory{depths: []int{2}, width: 16}, settings{peers: true, python: python})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Temporary <= 0 || r.TempRatio <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if len(records) != 3 {
		t.Errorf("%d records, want 3", len(records))
	}
}

// TestZeroMemoryCharts reads the table made of sizes that are made up.
func TestZeroMemoryCharts(t *testing.T) {
	var records []record
	for _, depth := range []int{2, 4} {
		c := stackCase{Depth: depth, Width: 256}
		records = append(records, compare("zero-memory", testCase{name: strconv.Itoa(depth), describe: c.describe}, []result{
			{implementation{name: "zero3", role: ours}, nil, footprint{Temporary: int64(depth) << 20}},
			{implementation{name: "jax-fsdp", role: peer}, nil, footprint{Temporary: int64(depth) << 21}},
		})...)
	}
	wantText(t, ratioText(records), (&zeroMemory{}).charts(records), "2 512 256 2048 4096", "4 512 512 4096 8192")
	if r := records[0]; r.TempRatio != 2 || r.Ratio != 0 {
		t.Errorf("%+v", r)
	}
}

// wantText looks for pieces of what is printed.
func wantText(t *testing.T, text string, charts []*chart.Chart, want ...string) {
	t.Helper()
	for _, c := range charts {
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		text += c.Text()
	}
	for _, w := range want {
		if got := strings.Join(strings.Fields(text), " "); !strings.Contains(got, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestZeroMemoryCases(t *testing.T) {
	for want, b := range map[string]*zeroMemory{
		"--d=6: want a multiple of 4":        {depths: []int{2}, width: 6},
		"--layers: 0 blocks, want 1 to 4096": {depths: []int{0}, width: 8},
	} {
		if _, err := b.cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %q", b, err, want)
		}
	}
}
