package pipeline

import (
	"fmt"
	"math"
	"slices"
)

// Even deals blocks to stages as evenly as can be; the first ones get one more. More stages than blocks are an error.
func Even(blocks, stages int) ([]int, error) {
	if stages < 1 || blocks < stages {
		return nil, fmt.Errorf("pipeline: %d blocks cannot be %d stages, each of at least one: "+
			"use at most %d stages, or a model with more blocks", blocks, stages, max(blocks, 1))
	}
	cut := make([]int, stages)
	for i := range cut {
		cut[i] = blocks / stages
		if i < blocks%stages {
			cut[i]++
		}
	}
	return cut, nil
}

// Balance cuts a chain of blocks into stages so that the most costly stage costs as little as can be: a pipeline is as
// fast as its slowest stage (Narayanan et al. 2019, "PipeDream", §3.1). The costs are the blocks' times for a
// micro-batch, in any unit; [Measure] has them. No stage needs more than limit of what memory says each block needs, in
// any unit; memory may be nil. Of several cuts that are equally good it is one whose first stage has the fewest blocks,
// since it keeps the most micro-batches; what is behind it is then cut as well as can be, in the same way.
//
// It is an error if there are more stages than blocks, if a cost is negative or no number, or if nothing fits the
// limit; the error then says what would.
func Balance(costs, memory []float64, limit float64, stages int) ([]int, error) {
	n := len(costs)
	if _, err := Even(n, stages); err != nil {
		return nil, err
	}
	if memory == nil {
		memory = make([]float64, n)
	} else if len(memory) != n {
		return nil, fmt.Errorf("pipeline: the memory of %d blocks and the costs of %d: give both for each", len(memory), n)
	}
	for i := range costs {
		if !(costs[i] >= 0 && memory[i] >= 0) || math.IsInf(costs[i]+memory[i], 1) {
			return nil, fmt.Errorf("pipeline: block %d costs %g and needs %g: give numbers that are not negative",
				i, costs[i], memory[i])
		}
	}
	cut, _ := partition(costs, memory, limit, stages)
	if cut == nil {
		_, least := partition(memory, memory, math.Inf(1), stages)
		return nil, fmt.Errorf("pipeline: no cut into %d stages needs at most %g on each: allow %g, or use more stages",
			stages, limit, least)
	}
	return cut, nil
}

// partition returns the cut whose largest stage costs least, and what that costs; nil if none fits.
func partition(costs, memory []float64, limit float64, stages int) (cut []int, cost float64) {
	n := len(costs)
	// best[s][i] is the least cost of the largest of s stages made of the blocks from i on; size[s][i] how many the
	// first of them has.
	best, size := make([][]float64, stages+1), make([][]int, stages+1)
	for s := range best {
		best[s], size[s] = make([]float64, n+1), make([]int, n+1)
		for i := range best[s] {
			best[s][i] = math.Inf(1)
		}
	}
	best[0][n] = 0
	for s := 1; s <= stages; s++ {
		for i := n - s; i >= 0; i-- {
			sum, need := 0.0, 0.0
			for k := i; k < n; k++ {
				sum, need = sum+costs[k], need+memory[k]
				if need > limit {
					break
				}
				if worst := max(sum, best[s-1][k+1]); worst < best[s][i] {
					best[s][i], size[s][i] = worst, k+1-i
				}
			}
		}
	}
	if math.IsInf(best[stages][0], 1) {
		return nil, 0
	}
	for s, i := stages, 0; s > 0; s-- {
		cut = append(cut, size[s][i])
		i += size[s][i]
	}
	return slices.Clip(cut), best[stages][0]
}
