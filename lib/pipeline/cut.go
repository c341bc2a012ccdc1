package pipeline

import (
	"fmt"
	"math"
	"slices"
)

// Even divides blocks among stages as evenly as possible; the first stages get one more. It returns the number of
// blocks of each stage, and an error if there are more stages than blocks.
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

// Balance divides a chain of blocks into stages so that the slowest stage is as fast as possible, since it determines
// the speed of the pipeline (Narayanan et al. 2019, "PipeDream", §3.1). It returns the number of blocks of each stage.
// Costs are the blocks' times for a micro-batch, in any unit; [Measure] measures them. Memory is what each block needs,
// in any unit, and limit the maximum of a stage; memory may be nil. Of equally good results it returns one whose first
// stage has the fewest blocks, since that stage saves the most micro-batches, and so on for the next stages.
//
// It returns an error if there are more stages than blocks, if a cost is negative or not finite, or if nothing fits the
// limit; the error then says which limit would do.
func Balance(costs, memory []float64, limit float64, stages int) ([]int, error) {
	n := len(costs)
	if _, err := Even(n, stages); err != nil {
		return nil, err
	}
	if memory == nil {
		memory = make([]float64, n)
	} else if len(memory) != n {
		return nil, fmt.Errorf("pipeline: the memory of %d blocks and the costs of %d: give both for each block",
			len(memory), n)
	}
	for i := range costs {
		if !(costs[i] >= 0 && memory[i] >= 0) || math.IsInf(costs[i]+memory[i], 1) {
			return nil, fmt.Errorf("pipeline: block %d costs %g and needs memory %g: give numbers that are finite and "+
				"not negative", i, costs[i], memory[i])
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

// partition returns the division whose most costly stage costs least, and that cost; nil if none fits.
func partition(costs, memory []float64, limit float64, stages int) (cut []int, cost float64) {
	n := len(costs)
	// best[s][i] is the least cost of the most costly of s stages of the blocks from i on; size[s][i] is the number of
	// blocks of the first of these stages.
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
