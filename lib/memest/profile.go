package memest

import (
	"cmp"
	"fmt"
	"math"
)

// Published counts, each with the names, the formulas and the mistakes of its source, to stand beside an [Estimate]:
// [Notes], [Korthikanti], [DeepSpeed], [Accelerate] and [ZeRO]. Their units differ: what DeepSpeed and Accelerate print
// as GB is 2³⁰ bytes ([GiB]), and so is a GB of Korthikanti et al.; the notes and the ZeRO paper mean 10⁹ ([GB]).

// published completes lines of a published count: one of each where no other count is set.
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
			return nil, fmt.Errorf("memest: %s: all lines together are more bytes than an int64 holds: "+
				"make the model, the batch or the sequence smaller", source)
		}
		it.Bytes, it.Values = one.bytes*it.Count, one.values
		total += it.Bytes
	}
	return items, nil
}

// field is a field of a count, with the numbers that it can have.
type field struct {
	name               string
	value, least, most int64
}

// inRange returns an error that names the first field which is out of its range.
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

// mostParameters is far more than any model has, and leaves room for the bytes of each.
const mostParameters = 1 << 56
