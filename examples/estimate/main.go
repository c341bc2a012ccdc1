// Estimate says what training Llama 3 8B needs on each of eight GPUs, before there is one, and what to change where that is
// too much.
//
// Output:
//
//	parameters     16.06 GB
//	master copy    32.12 GB
//	gradients      16.06 GB
//	optimizer      64.24 GB
//	activations    25.84 GB
//	logits          8.44 GB
//	communication   0.03 GB
//	together      162.79 GB of 85.90 GB
//
//	tensor parallelism 8, data 1    24.17 GB; two all-reduces a block and pass
//	tensor parallelism 4, data 2    43.99 GB; two all-reduces a block and pass
//	8 pipeline stages, data 1       49.09 GB; a bubble
//	ZeRO stage 3                    53.77 GB; half as much traffic again
//	4 pipeline stages, data 2       62.94 GB; a bubble
//	ZeRO stage 2                    64.85 GB; no more traffic
//	optimizer states in host memory 66.43 GB; traffic over the host link
//	ZeRO stage 1                    78.47 GB; no more traffic
//	tensor parallelism 2, data 4    83.59 GB; two all-reduces a block and pass
//
//	a step takes about 499 ms
package main

import (
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/precision"
)

func main() {
	llama, gpu := must(cost.Preset("Llama 3 8B")), must(cost.Accelerator("H100 SXM"))
	setup := memest.Setup{
		Model:     llama,
		Seq:       4096, // tokens of each GPU's one sequence
		Layout:    memest.Layout{Data: 8},
		Precision: must(precision.ParsePolicy("bf16")),
		Flash:     true,
	}
	ledger := must(memest.Estimate(setup))
	for _, kind := range memest.Kinds() {
		if bytes := ledger.Largest().Of(kind); bytes > 0 {
			fmt.Printf("%-13s %9s\n", kind, memest.GB(bytes))
		}
	}
	fmt.Printf("together      %9s of %s\n\n", memest.GB(ledger.BytesPerDevice()), memest.GB(gpu.MemoryBytes))

	for _, change := range must(memest.Advise(setup, gpu.MemoryBytes)) {
		if change.Fits {
			fmt.Printf("%-31s %8s; %s\n", change.What, memest.GB(change.Bytes), change.Cost)
		}
	}

	// A step of the eight GPUs, at 40% of the operations that they could do at most.
	work := must(llama.FLOPs(cost.Step{Sequences: 8, Length: setup.Seq, Causal: true}))
	took := must(cost.TrainingTime(work.Model(), 8, must(gpu.PeakFLOPS("bf16")), 0.4))
	fmt.Println("\na step takes about", took)
}

// must ends the program where a call failed.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
