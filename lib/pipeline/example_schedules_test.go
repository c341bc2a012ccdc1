package pipeline_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

func ExampleOneFOneB() {
	p := notebook.Must(pipeline.OneFOneB(3, 4))
	fmt.Print(p)
	fmt.Println("saved:", p.PeakActivations())
	// Output:
	// schedule 1f1b stages=3 microbatches=4 every=4 weights=flush
	// rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3 0U3
	// rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3 1U3
	// rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2U3
	// saved: [3 2 1]
}

// Each stage of DualPipe is on two ranks, which reduce its gradients.
func ExampleDualPipe() {
	p := notebook.Must(pipeline.DualPipe(2, 4))
	fmt.Print(p)
	q := notebook.Must(p.WithMessages())
	for _, a := range q.Axes {
		fmt.Println(a.Name, "is on ranks", a.Groups)
	}
	// Output:
	// schedule dualpipe stages=2 microbatches=4 every=4 weights=flush
	// rank 0: 0F0 1F2 0F1 &1B2 1F3 &0B0 1B3 0I1 0W1 0U3 1U3
	// rank 1: 0F2 1F0 0F3 &1B0 1F1 &0B2 1B1 0I3 0W3 0U3 1U3
	// unit-0 is on ranks [[0 1]]
	// unit-1 is on ranks [[0 1]]
}

// 1F1B waits longer than ZB-H1, which puts weight gradients where 1F1B waits, at the same memory.
func ExampleZBH1() {
	for _, build := range []func(ranks, microbatches int) (*step.Plan, error){pipeline.OneFOneB, pipeline.ZBH1} {
		p := notebook.Must(build(3, 4))
		t := notebook.Must(p.Simulate(step.Equal()))
		fmt.Print(t)
		fmt.Printf("%s takes %g, of which it waits %.1f%%, and saves %v\n\n", p.Name, t.StepTime, 100*t.Bubble,
			t.PeakActivations)
	}
	// Output:
	// rank 0 │0  1  2  ·  ·  ·  ·  0b─── 3  1b─── ·  2b─── ·  3b───
	// rank 1 │·  0  1  ·  ·  0b─── 2  1b─── 3  2b─── ·  3b─── ·  ·
	// rank 2 │·  ·  0  0b─── 1  1b─── 2  2b─── 3  3b─── ·  ·  ·  ·
	// 0 forward, 0b backward, · idle; a column is 1
	// 1f1b takes 18, of which it waits 33.3%, and saves [3 2 1]
	//
	// rank 0 │0  1  2  ·  ·  0i 0w 3  1i 1w 2i 2w 3i 3w
	// rank 1 │·  0  1  ·  0i 2  1i 0w 3  2i 1w 3i 2w 3w
	// rank 2 │·  ·  0  0i 1  1i 2  2i 0w 3  3i 1w 2w 3w
	// 0 forward, 0i input gradient, 0w weight gradient, · idle; a column is 1
	// zb-h1 takes 14, of which it waits 14.3%, and saves [3 3 3]
}

// A head makes the last stage slow, and there is memory for one micro-batch more than 1F1B saves.
func ExampleSearch() {
	costs := step.Costs{Forward: []float64{2, 2, 3}, InputGrad: []float64{2, 2, 3}, WeightGrad: []float64{2, 2, 3}}
	best := notebook.Must(pipeline.Search(3, 6, 1, costs, 4))
	known := notebook.Must(pipeline.ZBH1(3, 6))
	for _, p := range []*step.Plan{best, known} {
		t := notebook.Must(p.Simulate(costs))
		fmt.Printf("%s: a step takes %g, and memory %v\n", p.Name, t.StepTime, t.PeakMemory)
	}
	// Output:
	// search: a step takes 54, and memory [4 4 4]
	// zb-h1: a step takes 55, and memory [3 3 3]
}
