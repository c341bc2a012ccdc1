package main

import (
	"fmt"
	"strconv"
	"strings"
)

// byteUnit is the unit of all printed sizes.
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

// grouped formats a number with its digits in groups of three.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
