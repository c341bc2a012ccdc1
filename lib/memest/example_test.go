package memest_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/precision"
)

// setup is Llama 3 8B in mixed precision on eight GPUs, which share nothing but the batch.
func setup() memest.Setup {
	llama := notebook.Must(cost.Preset("Llama 3 8B"))
	bf16 := notebook.Must(precision.ParsePolicy("bf16"))
	return memest.Setup{Model: llama, Seq: 4096, Parallelism: memest.Parallelism{Data: 8}, Precision: bf16, Flash: true}
}

// Where the memory of a run goes, and how one line of it came to be.
func ExampleEstimate() {
	ledger := notebook.Must(memest.Estimate(setup()))
	device := ledger.Largest()
	for _, kind := range memest.Kinds() {
		if bytes := device.Of(kind); bytes > 0 {
			fmt.Printf("%-13s %9s\n", kind, memest.GB(bytes))
		}
	}
	fmt.Printf("together      %9s\n", memest.GB(ledger.BytesPerDevice()))
	for _, item := range device.Items {
		if item.Kind == memest.Optimizer {
			fmt.Printf("%s: %s where %s\n", item.Name, item.Formula, item.Values)
			break
		}
	}
	// Output:
	// parameters     16.06 GB
	// master copy    32.12 GB
	// gradients      16.06 GB
	// optimizer      64.24 GB
	// activations    25.84 GB
	// logits          8.44 GB
	// communication   0.03 GB
	// together      162.79 GB
	// m of embedding: 4*(ceil(v/t)*h) where v=128256, t=1, h=4096
}

// What to change for a device of 24 GB: no one change is enough, so several are combined.
func ExampleCombine() {
	changes := notebook.Must(memest.Combine(setup(), 24e9))
	for _, c := range changes {
		fmt.Printf("%s: %s, fits: %v\n", c.What, memest.GB(c.Bytes), c.Fits)
	}
	// Output:
	// tensor parallelism 8, data 1: 24.17 GB, fits: false
	// recompute ops:norm1,norm2,act: 20.61 GB, fits: true
}
