package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestTables makes a document's tables from a saved outcome.
func TestTables(t *testing.T) {
	o := outcome{
		Bench: "fake", Command: "go run ./bench fake --peers",
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Load1: 0.25,
		Machine: machine{Processor: "Some (R) CPU @ 2 GHz", Cores: 2, Memory: 8 << 30, System: "linux/amd64"},
		Versions: map[string]versions{
			"good": {nameGo: "1.26", namePlugin: "some-plugin 0.1.2"},
			"slow": {"Python": "3.13", nameJaxlib: "0.1.2"},
		},
	}
	o.Records = compare(o.Bench, testCase{name: "one"}, []result{
		{implementation{name: "good", role: ours}, sampleTimes{1, 2}, facts{}},
		{implementation{name: "slow", role: peer}, sampleTimes{2, 1}, facts{}},
	})
	dir := t.TempDir()
	const file = "fake-some-r-cpu-2-ghz-2-cores.json"
	if got := o.fileName(); got != file {
		t.Errorf("the file is %s, want %s", got, file)
	}
	must.Do(t, o.write(filepath.Join(dir, file)))
	document := must.Get(withTables("before\n"+tablesBegin+"old\n"+tablesEnd+"after\n", dir, benchmarks))(t)
	for want, has := range map[string]bool{
		"before\n": true, "after\n": true, "### fake\n\nFor tests.\n": true, "old": false,
		"`go run ./bench fake --peers`: Some (R) CPU @ 2 GHz, 2 cores, 8 GiB, linux/amd64, 2026-01-02": true,
		"load average 0.2 before the run.\n": true,
		"| case |  | ratio | least | of least times | best peer |\n| --- | --- | --- | --- | --- | --- |\n" +
			"| one | good | 1.25 | 0.50 | 1.00 | slow |\n": true, // no times
		"Ours: Go 1.26, XLA plugin some-plugin 0.1.2. Peers: Python 3.13, jaxlib 0.1.2. " +
			"XLA is that of jaxlib 0.1.2 on both sides.": true,
		"No results are saved yet of `collectives`, ": true,
	} {
		if strings.Contains(document, want) != has {
			t.Errorf("%q is there: %v, want %v, in\n%s", want, !has, has, document)
		}
	}
	o.Versions["slow"][nameJaxlib] = "0.1.1"
	o.Versions["rust"] = versions{"evcxr": "0.1"}
	want := "Peers: Python 3.13, evcxr 0.1, jaxlib 0.1.1. The XLA versions differ: ours is that of some-plugin 0.1.2, JAX's that of jaxlib 0.1.1."
	if got := sidesText(o.Versions); !strings.Contains(got, want) {
		t.Errorf("no %q in %q", want, got)
	}
}

// TestCommittedTables makes the README's tables from the saved results.
func TestCommittedTables(t *testing.T) {
	text := must.Get(os.ReadFile("README.md"))(t)
	want := must.Get(withTables(string(text), "results", benchmarks[:len(benchmarks)-2]))(t)
	if string(text) != want {
		t.Error("README.md has other tables than the results give: run \"go run ./bench tables\"")
	}
}

// TestPinnedXLA compares the XLA that the peers' pins bring with that of the plugin in use.
func TestPinnedXLA(t *testing.T) {
	backend := must.Get(openXLA(t.Context(), 1))(t)
	defer backend.Close()
	_, version, installed := strings.Cut(loaded[namePlugin], "lammps-jax-pjrt-cpu ")
	if !installed {
		systest.Skip(t, systest.System, "the plugin is not the one that is built from jaxlib: "+loaded[namePlugin])
	}
	if want := "\njaxlib==" + version + " ; python_full_version >= '3.12'"; !strings.Contains(requirements, want) {
		t.Errorf("requirements.txt has no %q, which is the XLA of %s", want, loaded[namePlugin])
	}
}
