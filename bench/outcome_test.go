package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
)

// madeUp is an outcome whose ratios can be seen: rounds of 2 and 0.5 against the peer.
func madeUp() outcome {
	o := outcome{
		Bench: "fake", Command: "go run ./bench fake --peers --save",
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Load1: 0.25,
		Machine: machine{Processor: "Some (R) CPU @ 2 GHz", Cores: 2, Memory: 8 << 30, System: "linux/amd64"},
		Versions: map[string]versions{
			"good": {nameGo: "1.26", namePlugin: "some-plugin 0.1.2"},
			"slow": {namePython: "3.13", nameJaxlib: "0.1.2"},
		},
	}
	o.Records = compare(o.Bench, testCase{name: "one"}, []result{
		{implementation{name: "good", role: ours}, sampleTimes{1, 2}, footprint{}},
		{implementation{name: "slow", role: peer}, sampleTimes{2, 1}, footprint{}},
	})
	return o
}

func TestSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), resultsName)
	want := madeUp()
	path, err := want.save(dir)
	if err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(path); name != "fake-some-r-cpu-2-ghz-2-cores.json" {
		t.Errorf("the file is %s", name)
	}
	got, err := loadOutcomes(dir, "fake")
	if err != nil || !reflect.DeepEqual(got, []outcome{want}) {
		t.Errorf("read %+v (%v), want %+v", got, err, want)
	}
	document, err := withTables("before\n"+tablesBegin+"old\n"+tablesEnd+"after\n", dir, benchmarks)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n", "after\n", "### fake\n\nFor tests.\n",
		"`go run ./bench fake --peers --save`: Some (R) CPU @ 2 GHz, 2 cores, 8 GiB, linux/amd64, 2026-01-02",
		"load average 0.2 before the run.\n", "| one | slow | 1.25 (0.50) | 0.0 |\n",
		"XLA is that of jaxlib 0.1.2 on both sides.", "No results are saved yet of `collectives`, ",
	} {
		if !strings.Contains(document, want) {
			t.Errorf("no %q in\n%s", want, document)
		}
	}
	if strings.Contains(document, "old") {
		t.Errorf("the tables that were there still are in\n%s", document)
	}

	// Whoever changes a sample or a ratio, or a file's name, is found out.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, []byte(strings.Replace(string(text), `"ratio": 1.25`, `"ratio": 1.35`, 1)))
	if _, err := loadOutcomes(dir, "fake"); err == nil || !strings.Contains(err.Error(), "its samples give") {
		t.Errorf("error %v for a ratio that is another than its samples'", err)
	}
	write(path, text)
	write(filepath.Join(dir, "fake-other.json"), text)
	if _, err := loadOutcomes(dir, "fake"); err == nil || !strings.Contains(err.Error(), "belong into fake-some-r-cpu") {
		t.Errorf("error %v for a file of another machine's name", err)
	}
}

// TestCommittedTables makes the document's tables from the saved results.
func TestCommittedTables(t *testing.T) {
	real := benchmarks[:len(benchmarks)-1] // the last is for tests
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := withTables(string(text), resultsName, real)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("README.md has other tables than %s gives: run \"go run ./bench tables\"", resultsName)
	}
	known := 0
	for _, fresh := range real {
		all, err := loadOutcomes(resultsName, fresh().name())
		if err != nil {
			t.Fatal(err)
		}
		known += len(all)
	}
	if files, _ := filepath.Glob(filepath.Join(resultsName, "*")); len(files) != known || known == 0 {
		t.Errorf("%d files in %s, of which %d are results of a benchmark", len(files), resultsName, known)
	}
}

func TestSides(t *testing.T) {
	o := madeUp()
	want := "Ours: Go 1.26, XLA plugin some-plugin 0.1.2. Peers: Python 3.13, jaxlib 0.1.2. " +
		"XLA is that of jaxlib 0.1.2 on both sides."
	if got := sidesText(o.Versions); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	o.Versions["slow"][nameJaxlib] = "0.1.1"
	want = "The XLA versions differ: ours is that of some-plugin 0.1.2, JAX's that of jaxlib 0.1.1."
	if got := sidesText(o.Versions); !strings.Contains(got, want) {
		t.Errorf("no %q in %q", want, got)
	}
}

// TestPinnedXLA compares the XLA that the peers' pins bring with that of the plugin in use.
func TestPinnedXLA(t *testing.T) {
	backend, err := openXLA(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	_, version, installed := strings.Cut(loaded[namePlugin], "lammps-jax-pjrt-cpu ")
	if !installed {
		systest.Skip(t, systest.System, "the plugin is not the one that is built from jaxlib: "+loaded[namePlugin])
	}
	if want := "\njaxlib==" + version + " ; python_full_version >= '3.12'"; !strings.Contains(requirements, want) {
		t.Errorf("requirements.txt has no %q, which is the XLA of %s", want, loaded[namePlugin])
	}
}

func TestSizes(t *testing.T) {
	s := sizes{bytes: []int64{4096, 1 << 20}}
	if got := s.String(); got != "4KiB,1MiB" {
		t.Errorf("the default is shown as %s", got)
	}
	for _, text := range []string{"48,64KiB", "3MiB,1GiB,0"} {
		if err := s.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.bytes, []int64{48, 64 << 10, 3 << 20, 1 << 30, 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("sizes %v, want %v", got, want)
	}
}

func TestPivot(t *testing.T) {
	records := []record{
		{Case: "a", Impl: "x", Role: ours, Over: "o", Cost: 1, MinCost: 2},
		{Case: "a", Impl: "y", Role: peer, Over: "o", Cost: 3},
		{Case: "a", Impl: "z", Role: limit},
		{Case: "a", Impl: "w", Role: variant},
		{Case: "b", Impl: "y", Role: peer},
	}
	got := pivot("t", records, costCell, ours, peer, variant)
	want := table{"t", []string{"case", "x", "y", "w"},
		[][]string{{"a", "1.00 (2.00)", "3.00 (0.00)", none}, {"b", none, none, none}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	const turned = "t\n\n| case | a | b |\n| --- | --- | --- |\n" +
		"| x | 1.00 (2.00) | – |\n| y | 3.00 (0.00) | – |\n| w | – | – |\n"
	if got := got.upright().markdown(); got != turned {
		t.Errorf("got %s, want %s", got, turned)
	}
}
