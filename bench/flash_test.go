package main

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

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

// TestFlashFingerprint makes errors that must be seen in an array as large as that of 8192 tokens.
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

func TestProcBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	for text, want := range map[string]int64{
		"MemTotal:  9 kB\nMemAvailable:    7 kB\n": 7 << 10,
		"MemAvailableToo: 7 kB\n":                  -1,
		"MemAvailable: much\n":                     -1,
		"":                                         -1,
	} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		if got := procBytes(path, "MemAvailable", -1); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
