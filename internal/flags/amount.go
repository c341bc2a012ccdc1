package flags

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Amount is a number in a readable form: 7.5e9, 7.5B, 80GB, 80GiB.
type Amount string

var (
	thousands = map[string]int64{"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
	byteUnits = map[string]int64{"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

	numberAndUnit = regexp.MustCompile(`^([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)$`)
)

// Count returns an integer of at least 1, or an error that names the flag.
func (a Amount) Count(flag string) (int64, error) {
	x, ok := a.value(thousands)
	if !ok || !x.IsInt() || x.Sign() < 1 || !x.Num().IsInt64() {
		return 0, fmt.Errorf("--%s=%.60s: want a whole number from 1 to 9.2e18, as 7500000000, 7.5e9 or 7.5B", flag, a)
	}
	return x.Num().Int64(), nil
}

// Bytes returns a number of bytes, rounded down, or an error that names the flag if it is less than least.
func (a Amount) Bytes(flag string, least int64) (int64, error) {
	x, ok := a.value(byteUnits)
	if ok {
		if n := new(big.Int).Quo(x.Num(), x.Denom()); n.IsInt64() && n.Int64() >= least {
			return n.Int64(), nil
		}
	}
	return 0, fmt.Errorf("--%s=%.60s: want bytes, at least %d, as 25000000, 80GB (of 10⁹ bytes) or 80GiB (of 2³⁰)",
		flag, a, least)
}

// value returns the exact number. It rejects numbers far outside int64 first, whose digits could fill the memory.
func (a Amount) value(units map[string]int64) (*big.Rat, bool) {
	parts := numberAndUnit.FindStringSubmatch(strings.ToLower(string(a)))
	if parts == nil || len(a) > 60 {
		return nil, false
	}
	unit, ok := units[parts[3]]
	near, err := strconv.ParseFloat(parts[1]+parts[2], 64)
	switch {
	case !ok || err != nil || near > 1e19:
		return nil, false
	case near < 1e-19: // 0, or less than a byte in any unit
		return new(big.Rat), true
	}
	x, ok := new(big.Rat).SetString(parts[1] + parts[2])
	if !ok {
		return nil, false
	}
	return x.Mul(x, new(big.Rat).SetInt64(unit)), true
}

// Bytes is a flag for a number of bytes, such as 25MB; 0 means not given.
type Bytes int64

// Set implements [pflag.Value].
func (b *Bytes) Set(text string) error {
	n, err := Amount(text).Bytes("", 1)
	if err != nil {
		return errors.New("want bytes, at least 1, as 25000000, 25e6, 25MB or 25MiB")
	}
	*b = Bytes(n)
	return nil
}

// String implements [pflag.Value].
func (b *Bytes) String() string {
	if *b == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type implements [pflag.Value].
func (b *Bytes) Type() string { return "bytes" }
