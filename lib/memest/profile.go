package memest

import (
	"cmp"
	"fmt"
	"math"
)

// Published formulas, each with the names, units and mistakes of its source, for comparison with an [Estimate]:
// [Notes], [Korthikanti], [DeepSpeed], [Accelerate] and [ZeRO]. DeepSpeed, Accelerate and Korthikanti et al. print
// units of 2³⁰ bytes as GB; for the notes and the ZeRO paper a GB is 10⁹ bytes.

// published computes the items of a published formula. Counts default to 1.
func (v vars) published(source string, items ...Item) ([]Item, error) {
	sheet := newSheet(v)
	var total int64
	for i := range items {
		it := &items[i]
		it.Count, it.Source = cmp.Or(it.Count, 1), source
		one, err := sheet.compute(it.Formula)
		if err != nil {
			return nil, fmt.Errorf("memest: %w", err)
		}
		if one.bytes > (math.MaxInt64-total)/it.Count {
			return nil, fmt.Errorf("memest: %s: the sum of all bytes overflows an int64: "+
				"make the model, the batch or the sequence smaller", source)
		}
		it.Bytes, it.Values = one.bytes*it.Count, one.values
		total += it.Bytes
	}
	return items, nil
}

// field is a field of a struct with its valid range.
type field struct {
	name               string
	value, least, most int64
}

// inRange returns an error that names the first field out of its range.
func inRange(of string, fields ...field) error {
	for _, f := range fields {
		if f.value < f.least {
			return fmt.Errorf("memest: %s.%s is %d: set it to at least %d", of, f.name, f.value, f.least)
		}
		if f.value > f.most {
			return fmt.Errorf("memest: %s.%s is %d: set it to at most %d", of, f.name, f.value, f.most)
		}
	}
	return nil
}

// mostParameters keeps the bytes of all states within an int64.
const mostParameters = int64(1) << 56
