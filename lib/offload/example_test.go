package offload_test

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A small GPT learns with only its parameters on the device between steps: Adam's moments and a master copy of the
// parameters stay on the host, which computes the updates, and inputs of blocks wait there for the backward pass.
func Example() {
	backend := notebook.Must(xla.Open(xla.Devices(1), xla.Plugin("cpu")))
	defer backend.Close()
	config := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 16, Vocab: 128, Norm: gpt.RMSNorm, NoBias: true}
	ctx := context.Background()
	run := notebook.Must(offload.New(ctx, backend, train.Recipe{Model: config, Optimizer: optim.AdamW(2e-2)},
		offload.Options{Host: offload.Host{Update: true, Activations: true, Prefetch: 1}}))
	defer run.Close()
	batches := notebook.Must(gpt.Reference().Batches(config, 2))
	for run.Steps() < 11 {
		inputs, targets, err := batches.Step(run.Steps())
		notebook.Check(err)
		m := notebook.Must(run.Step(ctx, inputs, targets))
		if done := run.Steps(); done%10 == 1 {
			fmt.Printf("step %2d: loss %.1f\n", done, m.Loss)
		}
	}
	most := run.Memory()
	fmt.Println("device:", most["parameters"], "bytes of parameters,", most["optimizer"], "of states")
	fmt.Println("host:  ", most["host master copy"], "bytes of a master copy,", most["host optimizer"], "of states")
	// Output:
	// step  1: loss 4.9
	// step 11: loss 3.1
	// device: 42304 bytes of parameters, 0 of states
	// host:   42304 bytes of a master copy, 84608 of states
}
