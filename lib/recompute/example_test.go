package recompute_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/recompute"
)

// A policy is text; its plan lists what each block recomputes, operation by operation.
func ExamplePolicy_Plan() {
	plan := must(recompute.Policy("ops:norm1,norm2,act").Plan(4))
	fmt.Println(plan[0], plan[0].Has(recompute.Act), plan.Policy())
	_, err := recompute.Policy("every:0").Plan(4)
	fmt.Println(err)
	// Output:
	// norm1,norm2,act true plan:norm1,norm2,act*4
	// recompute: policy "every:0": give a number of blocks, at least 1, as in every:2
}

// The cheapest way to stay within a budget: large outputs that are cheap to recompute are dropped first.
func ExampleChoose() {
	steps := []recompute.Step{
		{Name: "qkv", Bytes: 3, Cost: 24},
		{Name: "scores", Bytes: 8, Cost: 16},
		{Name: "mid", Bytes: 1, Cost: 8},
		{Name: "up", Bytes: 4, Cost: 32},
		{Name: "act", Bytes: 4, Cost: 4},
		{Name: "down", Bytes: 1, Cost: 32, Always: true},
	}
	for _, budget := range []int64{21, 13, 12, 11} {
		keep, peak, cost, err := recompute.Choose(steps, budget)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Print("peak ", peak, " at a cost of ", cost, ", again:")
		for i, s := range steps {
			if !keep[i] {
				fmt.Print(" ", s.Name)
			}
		}
		fmt.Println()
	}
	// Output:
	// peak 21 at a cost of 0, again:
	// peak 13 at a cost of 16, again: scores
	// peak 12 at a cost of 40, again: qkv scores
	// recompute: no choice needs at most 11 bytes: the least possible is 12, raise the budget
}

func ExampleUniform() {
	fmt.Println(recompute.Uniform(36, 6), recompute.Uniform(10, 3))
	// Output: [6 6 6 6 6 6] [4 3 3]
}

func ExampleShrinking() {
	fmt.Println(recompute.Shrinking(36))
	// Output: [8 7 6 5 4 3 2 1]
}
