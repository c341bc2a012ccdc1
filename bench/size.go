package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// sizes is the value of a flag that takes sizes in bytes, as 4096, 64KiB or 1MiB. What a user gives replaces the
// default.
type sizes struct {
	bytes []int64
	given bool
}

// sizeUnits are the units of a size, each 1024 times the one before it.
var sizeUnits = []string{"B", "KiB", "MiB", "GiB"}

var sizeFormat = regexp.MustCompile(`^([0-9]+)(B|KiB|MiB|GiB)?$`)

func (s *sizes) Set(text string) error {
	var all []int64
	for part := range strings.SplitSeq(text, ",") {
		n, err := parseSize(part)
		if err != nil {
			return err
		}
		all = append(all, n)
	}
	if s.given {
		all = append(s.bytes, all...)
	}
	s.bytes, s.given = all, true
	return nil
}

func (s *sizes) String() string {
	var texts []string
	for _, n := range s.bytes {
		texts = append(texts, strings.ReplaceAll(sizeText(n), " ", ""))
	}
	return strings.Join(texts, ",")
}

func (s *sizes) Type() string { return "sizes" }

func parseSize(text string) (int64, error) {
	parts := sizeFormat.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%.40q is no size: want bytes, or a whole number of KiB, MiB or GiB, as 4096, 64KiB or 1MiB",
			text)
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	for _, unit := range sizeUnits[1:] {
		if parts[2] == "" || parts[2] == "B" {
			break
		}
		if n > math.MaxInt64/1024 {
			err = strconv.ErrRange
		}
		n *= 1024
		if unit == parts[2] {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%.40q is more than the 2⁶³-1 bytes that a size may have", text)
	}
	return n, nil
}

// sizeText writes a size with the largest unit that divides it.
func sizeText(bytes int64) string {
	i := 0
	for ; i < len(sizeUnits)-1 && bytes > 0 && bytes%1024 == 0; i++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%d %s", bytes, sizeUnits[i])
}
