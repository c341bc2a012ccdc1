package main

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// collectiveOps are the operations that are measured.
var collectiveOps = []string{"all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"}

// collectiveCase is one operation on buffers of one size, of float32.
type collectiveCase struct {
	Op    string `json:"op"`
	Bytes int64  `json:"bytes"` // of the larger of a rank's two buffers
	Ranks int    `json:"ranks"`
}

// busFactor turns the algorithm bandwidth into the bus bandwidth.
func (c collectiveCase) busFactor() float64 {
	named := func(op plan.Op) bool { return op.String() == c.Op }
	return plan.BusFactor(plan.Ops()[slices.IndexFunc(plan.Ops(), named)], c.Ranks)
}

// traffic is the least number of bytes that all ranks together read and write.
func (c collectiveCase) traffic() int64 {
	n := int64(c.Ranks)
	switch c.Op {
	case "all-reduce", "all-to-all":
		return 2 * n * c.Bytes // every buffer is read and written
	case "broadcast":
		return n * c.Bytes // one is read, the others are written
	default:
		return (n + 1) * c.Bytes // every full buffer and every part, once
	}
}

// counts is the number of elements of a rank's input and output. An operation in place has no output buffer.
func (c collectiveCase) counts() (in, out int) {
	full := int(c.Bytes / 4)
	part := full / c.Ranks
	switch c.Op {
	case "reduce-scatter":
		return full, part
	case "all-gather":
		return part, full
	case "all-to-all":
		return full, full
	default:
		return full, 0
	}
}

// Element i of rank r's data is (r+1)·(1 + i mod period): sums of it are exact in
// float32, and as the period is a prime no displaced block looks right.
const period = 251

// fill writes elements from, from+1, … of a rank's data.
func fill(buf []float32, rank, from int) {
	for i := range min(period, len(buf)) {
		buf[i] = float32((rank + 1) * (1 + (from+i)%period))
	}
	for done := period; done < len(buf); done *= 2 {
		copy(buf[done:], buf[:done])
	}
}

// fillInput writes a rank's input.
func (c collectiveCase) fillInput(in []float32, rank int) {
	from := 0
	if c.Op == "all-gather" {
		from = rank * len(in)
	}
	fill(in, rank, from)
}

// check compares a rank's result with the expected one.
func (c collectiveCase) check(got []float32, rank int) error {
	part := int(c.Bytes/4) / c.Ranks
	sum := c.Ranks * (c.Ranks + 1) / 2
	for i, value := range got {
		factor, at := sum, i // of the reductions
		switch c.Op {
		case "reduce-scatter":
			at = rank*part + i
		case "all-gather":
			factor = i/part + 1
		case "all-to-all":
			factor, at = i/part+1, rank*part+i%part
		case "broadcast":
			factor = 1
		}
		if want := float32(factor * (1 + at%period)); value != want {
			return fmt.Errorf("wrong result: %s of %d bytes, element %d is %v, want %v", c.Op, c.Bytes, i, value, want)
		}
	}
	return nil
}
