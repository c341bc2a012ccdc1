package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// amount is a number as people write large ones: 7.5e9, 7.5B, 80GB, 80GiB. In JSON it may also be a number.
type amount string

func (a *amount) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err == nil {
		*a = amount(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("%.40s: want a number, or a text such as \"7.5B\" or \"80GB\"", text)
	}
	*a = amount(n)
	return nil
}

var (
	thousands = map[string]int64{"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
	byteUnits = map[string]int64{"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

	numberAndUnit = regexp.MustCompile(`^([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)$`)
)

// count is a whole number of things, at least 1.
func (a amount) count(flag string) (int64, error) {
	x, ok := a.value(thousands)
	if !ok || !x.IsInt() || x.Sign() < 1 || !x.Num().IsInt64() {
		return 0, fmt.Errorf("--%s=%.60s: want a whole number from 1 to 9.2e18, as 7500000000, 7.5e9 or 7.5B", flag, a)
	}
	return x.Num().Int64(), nil
}

// bytes is a number of bytes, what is over a whole one cut off.
func (a amount) bytes(flag string, least int64) (int64, error) {
	x, ok := a.value(byteUnits)
	if ok {
		if n := new(big.Int).Quo(x.Num(), x.Denom()); n.IsInt64() && n.Int64() >= least {
			return n.Int64(), nil
		}
	}
	return 0, fmt.Errorf("--%s=%.60s: want bytes, at least %d, as 25000000, 80GB (of 10⁹ bytes) or 80GiB (of 2³⁰)", flag, a, least)
}

// value is the exact number, of one between those that an int64 is near: the digits of others could fill the memory.
func (a amount) value(units map[string]int64) (*big.Rat, bool) {
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

// byteUnit is the unit of everything that is printed.
type byteUnit struct {
	name  string
	bytes float64
	means string
}

func parseUnits(name string) (byteUnit, error) {
	switch strings.ToLower(name) {
	case "gb":
		return byteUnit{"GB", 1e9, "10⁹ bytes"}, nil
	case "gib":
		return byteUnit{"GiB", 1 << 30, "2³⁰ bytes"}, nil
	}
	return byteUnit{}, fmt.Errorf("--units=%s: want GB or GiB", name)
}

// grouped writes a number with its digits in threes.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
