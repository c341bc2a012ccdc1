package schedule_test

import (
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// 1F1B waits longer than ZB-H1, which puts weight gradients where 1F1B waits, at the same memory.
func ExampleSchedule_Simulate() {
	for _, build := range []func(ranks, microbatches int) (schedule.Schedule, error){schedule.OneFOneB, schedule.ZBH1} {
		s, err := build(3, 4)
		if err != nil {
			log.Fatal(err)
		}
		t, err := s.Simulate(schedule.Equal())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(t)
		fmt.Printf("%s takes %g, of which it waits %.1f%%, and stashes %v\n\n", s.Name, t.StepTime, 100*t.Bubble, t.PeakActivations)
	}
	// Output:
	// rank 0 │0  1  2  ·  ·  ·  ·  0b─── 3  1b─── ·  2b─── ·  3b───
	// rank 1 │·  0  1  ·  ·  0b─── 2  1b─── 3  2b─── ·  3b─── ·  ·
	// rank 2 │·  ·  0  0b─── 1  1b─── 2  2b─── 3  3b─── ·  ·  ·  ·
	// 0 forward, 0b backward, · idle; a column is 1
	// 1f1b takes 18, of which it waits 33.3%, and stashes [3 2 1]
	//
	// rank 0 │0  1  2  ·  ·  0i 0w 3  1i 1w 2i 2w 3i 3w
	// rank 1 │·  0  1  ·  0i 2  1i 0w 3  2i 1w 3i 2w 3w
	// rank 2 │·  ·  0  0i 1  1i 2  2i 0w 3  3i 1w 2w 3w
	// 0 forward, 0i input gradient, 0w weight gradient, · idle; a column is 1
	// zb-h1 takes 14, of which it waits 14.3%, and stashes [3 3 3]
}

// A head makes the last stage slow, and memory is for one micro-batch more than 1F1B holds.
func ExampleSearch() {
	costs := schedule.Costs{Forward: []float64{2, 2, 3}, InputGrad: []float64{2, 2, 3}, WeightGrad: []float64{2, 2, 3}}
	best, err := schedule.Search(3, 6, 1, costs, 4)
	if err != nil {
		log.Fatal(err)
	}
	known, err := schedule.ZBH1(3, 6)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range []schedule.Schedule{best, known} {
		t, err := s.Simulate(costs)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: a step takes %g, and memory %v\n", s.Name, t.StepTime, t.PeakMemory)
	}
	// Output:
	// search: a step takes 54, and memory [4 4 4]
	// zb-h1: a step takes 55, and memory [3 3 3]
}
