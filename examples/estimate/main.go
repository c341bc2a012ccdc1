// Estimate predicts the memory of training Llama 3 8B on each of eight GPUs, and which changes make it fit.
package main

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/precision"
)

func main() {
	llama, gpu := notebook.Must(cost.Preset("Llama 3 8B")), notebook.Must(cost.Accelerator("H100 SXM"))
	setup := memest.Setup{
		Model:       llama,
		Seq:         4096, // tokens per sequence; each GPU has one sequence
		Parallelism: memest.Parallelism{Data: 8},
		Precision:   notebook.Must(precision.ParsePolicy("bf16")),
		Flash:       true,
	}
	ledger := notebook.Must(memest.Estimate(setup))
	for _, kind := range memest.Kinds() {
		if bytes := ledger.Largest().Of(kind); bytes > 0 {
			fmt.Printf("%-13s %9s\n", kind, memest.GB(bytes))
		}
	}
	fmt.Printf("together      %9s of %s\n\n", memest.GB(ledger.BytesPerDevice()), memest.GB(gpu.MemoryBytes))

	for _, change := range notebook.Must(memest.Advise(setup, gpu.MemoryBytes)) {
		if change.Fits {
			fmt.Printf("%-31s %8s; %s\n", change.What, memest.GB(change.Bytes), change.Cost)
		}
	}

	// A step of the eight GPUs, at 40% of their peak.
	work := notebook.Must(llama.FLOPs(cost.Step{Sequences: 8, Length: setup.Seq, Causal: true}))
	took := notebook.Must(cost.TrainingTime(work.Model(), 8, notebook.Must(gpu.PeakFLOPS("bf16")), 0.4))
	fmt.Println("\na step takes about", took)
}
