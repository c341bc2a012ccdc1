package main

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

func TestFlashCases(t *testing.T) {
	cases, err := (&flashBench{tokens: []int{64, flashMost}, threads: 1}).cases()
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name string
		fits bool
	}{
		{"forward, 64 tokens", true},
		{"forward, 1048576 tokens", false}, // scores of 32 TiB
		{"forward+backward, 64 tokens", true},
		{"forward+backward, 1048576 tokens", false},
	}
	for i, c := range cases {
		if fits := c.params.(flashCase).Fits; c.name != want[i].name || fits != want[i].fits {
			t.Errorf("%q, fits: %v; want %+v", c.name, fits, want[i])
		}
	}
	if len(cases) != len(want) {
		t.Errorf("%d cases, want %d", len(cases), len(want))
	}
}

func TestFlashFits(t *testing.T) {
	for _, test := range []struct {
		params             string
		holdsScores, wants bool
	}{
		{`{"tokens": 8, "heads": 1, "fits": true}`, true, true},
		{`{"tokens": 8, "heads": 1, "fits": false}`, true, false},
		{`{"tokens": 8, "heads": 1, "fits": false}`, false, true},
	} {
		_, err := parseFlash([]byte(test.params), test.holdsScores)
		if unsupported := errors.As(err, new(errUnsupported)); unsupported == test.wants || err != nil && !unsupported {
			t.Errorf("%+v: error %v", test, err)
		}
	}
}

func TestFlashData(t *testing.T) {
	// The generator's first output for the seed 0 (Vigna, prng.di.unimi.it/splitmix64.c).
	if got := splitmix(0); got != 0xE220A8397B1DCDAF {
		t.Errorf("splitmix(0) is %#x", got)
	}
	const n = 10000
	sum, squares := 0.0, 0.0
	for _, x := range flashData(1, n) {
		sum, squares = sum+float64(x), squares+float64(x)*float64(x)
	}
	// Within five standard deviations: 1/√n of the mean, √(4/5n) of the mean square.
	if math.Abs(sum/n) > 0.05 || math.Abs(squares/n-1) > 0.045 {
		t.Errorf("mean %v, mean square %v, want 0 and 1", sum/n, squares/n)
	}
}

// TestFlashFingerprint makes errors that must be seen in an array as large as that of
// 8192 tokens.
func TestFlashFingerprint(t *testing.T) {
	result := flashData(0, 8192*flashHeads*flashWidth)
	right := fingerprint(result)
	for name, spoil := range map[string]func(){
		"a row of zeros": func() { clear(result[:flashHeads*flashWidth]) },
		"heads swapped":  func() { copy(result[flashWidth:], result[:flashWidth]) },
		"all of it":      func() { result = flashData(1, len(result)) },
	} {
		spoil()
		if got := fingerprint(result); math.Abs(got-right) < 10*flashTolerance {
			t.Errorf("%s: %v, as if it were right: %v", name, got, right)
		}
		result = flashData(0, len(result))
	}
}

func TestPeakRise(t *testing.T) {
	const much = 64 << 20
	got, err := peakRise(func() error {
		for block := make([]byte, much); len(block) > 0; block = block[1<<10:] {
			block[0] = 1 // pages that nobody writes to are not there
		}
		return errors.New("as it is")
	})
	if err == nil || err.Error() != "as it is" {
		t.Errorf("error %v", err)
	}
	least, most := int64(much*9/10), int64(much*5/4)
	if _, err := os.Stat("/proc/self/clear_refs"); err != nil {
		least, most = 0, 0
	}
	if got < least || got > most {
		t.Errorf("rise of %d, want %d to %d", got, least, most)
	}
}

func TestProcField(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:  9 kB\nMemAvailable:    7 kB\n": 7 << 10,
		"MemAvailableToo: 7 kB\n":                  -1,
		"MemAvailable: much\n":                     -1,
		"":                                         -1,
	} {
		if got := procField(text, "MemAvailable", -1); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestFlashOurs has the three ways of ours agree.
func TestFlashOurs(t *testing.T) {
	b := &flashBench{tokens: []int{400}, threads: 1}
	records, err := run(t, b, settings{rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 6 {
		t.Fatalf("%d records, want 6", len(records))
	}
	for _, r := range records {
		holds := r.Temporary >= flashCase{Tokens: 400, Heads: flashHeads}.scores()
		if r.Tokens != 400 || r.Op == "" || (r.Role == variant) != (r.Ratio > 0) || (r.Impl == "plain") && !holds || r.Impl == "flash" && holds {
			t.Errorf("%+v", r)
		}
	}
}

// TestFlashPeers has all agree.
func TestFlashPeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	records, err := run(t, &flashBench{tokens: []int{300}, threads: 2}, settings{rounds: 1, peers: true, python: python})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 14 {
		t.Fatalf("%d records, want 14", len(records))
	}
	for _, r := range records {
		if r.Ratio <= 0 {
			t.Errorf("%s, %s has no ratio: %+v", r.Impl, r.Case, r)
		}
		if compiled := r.Impl != "torch"; compiled != (r.Temporary > 0) {
			t.Errorf("%s, %s: memory %+v", r.Impl, r.Case, r.footprint)
		}
	}
}

// TestFlashCharts reads the tables made of times and sizes that are made up.
func TestFlashCharts(t *testing.T) {
	c := flashCase{Tokens: 512}
	records := compare("flash", testCase{name: "short", describe: c.describe}, []result{
		{implementation{name: "flash", role: ours}, sampleTimes{10, 20}, footprint{Temporary: 1 << 20, ExtraRSS: 2 << 20}},
		{implementation{name: "plain", role: variant}, sampleTimes{5, 5}, footprint{Temporary: 8 << 20}},
		{implementation{name: "torch", role: peer}, sampleTimes{20, 30}, footprint{ExtraRSS: 3 << 20}},
	})
	c.Tokens = 1024
	records = append(records, compare("flash", testCase{name: "long", describe: c.describe}, []result{
		{implementation{name: "flash", role: ours}, sampleTimes{10}, footprint{}},
		{implementation{name: "torch", role: peer}, sampleTimes{15}, footprint{}},
	})...)
	var text strings.Builder
	for _, c := range (&flashBench{}).charts(records) {
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		text.WriteString(c.Text())
	}
	got := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"torch █▁ 1.75 → 1.5",
		"case plain torch",
		"short 0.38 (0.25) 1.75 (1.50)",
		"long – 1.50 (1.50)",
		"case flash plain torch",
		"short 1.0 / 2.0 8.0 / – – / 3.0",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
