package flags

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestAmounts(t *testing.T) {
	for text, want := range map[Amount]int64{"1": 1, "7.5e9": 7.5e9, "7.5E9": 7.5e9, "7.5B": 7.5e9, "350M": 350e6,
		"350 m": 350e6, "1.5k": 1500, ".5k": 500,
		"1.T": 1e12, "100e-2": 1, "9223372036854775807": math.MaxInt64, "9007199254740993": 1<<53 + 1, "1.0": 1} {
		if got, err := text.Count("n"); got != want || err != nil {
			t.Errorf("%q counts %d, error %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[Amount]int64{"0": 0, "0.9": 0, "1e-400": 0, "25MB": 25e6, "80GB": 80e9, "80gb": 80e9,
		"80GiB": 80 << 30, "1.5 KiB": 1536,
		"0.1GiB": 107374182, "2TB": 2e12, "2TiB": 2 << 40, "7B": 7, "1e9": 1e9} {
		if got, err := text.Bytes("n", 0); got != want || err != nil {
			t.Errorf("%q is %d bytes, error %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []Amount{"", "B", "e9", ".", "1e", "1.2.3", "0x10", "1_000", "1/2", "-1", "+1", "NaN", "∞",
		"Inf", "1e-3", "7.5GB",
		"1e19", "1e999999999", "1e-999999999", Amount(strings.Repeat("1", 10000)),
		"9223372036854775808", "8Q", "1e9 e"} {
		if n, err := text.Count("n"); err == nil {
			t.Errorf("%q counts %d", text, n)
		}
	}
	for _, text := range []Amount{"1e60", "0.5", "80XB"} {
		if n, err := text.Bytes("n", 1); err == nil {
			t.Errorf("%q is %d bytes", text, n)
		}
	}
}

// Whatever is read is a number that Go reads as nearly the same, and it is in range.
func FuzzAmount(f *testing.F) {
	for _, text := range []string{"7.5e9", "1e-3", "0.001k", "1e999", "80GiB", "\"7B\"", "12.50", "null"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := Amount(text).Count("n")
		if x, plain := strconv.ParseFloat(text, 64); plain == nil && err == nil && math.Abs(x-float64(n)) > 1e-9*x {
			t.Errorf("%q counts %d", text, n)
		}
		if b, wrong := Amount(text).Bytes("n", 3); err == nil && n < 1 || wrong == nil && b < 3 {
			t.Errorf("%q counts %d and is %d bytes", text, n, b)
		}
	})
}
