package main

import (
	"slices"
	"testing"
)

// TestCheck makes each operation's result from its definition, element by element.
func TestCheck(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		for _, op := range collectiveOps {
			c := collectiveCase{Op: op, Bytes: int64(4 * n * 400), Ranks: n}
			in, _ := c.counts()
			ins := make([][]float32, n)
			for rank := range ins {
				ins[rank] = make([]float32, in)
				c.fillInput(ins[rank], rank)
			}
			for rank := range n {
				got := define(op, ins, rank)
				if err := c.check(got, rank); err != nil {
					t.Errorf("rank %d of %d: %v", rank, n, err)
				}
				got[len(got)-1]++
				if c.check(got, rank) == nil {
					t.Errorf("%s, rank %d of %d: a wrong last element is not found", op, rank, n)
				}
			}
		}
	}
}

// define is the result of a rank.
func define(op string, ins [][]float32, rank int) (got []float32) {
	n := len(ins)
	part := len(ins[0]) / n
	switch op {
	case "all-gather":
		return slices.Concat(ins...)
	case "broadcast":
		return slices.Clone(ins[0])
	case "all-to-all":
		for _, in := range ins {
			got = append(got, in[rank*part:(rank+1)*part]...)
		}
		return got
	}
	got = make([]float32, len(ins[0]))
	for _, in := range ins {
		for i, x := range in {
			got[i] += x
		}
	}
	if op == "reduce-scatter" {
		got = got[rank*part : (rank+1)*part]
	}
	return got
}
