package offload_test

import (
	"context"
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/xla"
)

// A small GPT learns with only its parameters on the device between steps: Adam's moments and a master copy of the
// parameters stay on the host, which computes the updates, and inputs of blocks wait there for the backward pass.
func Example() {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis("data", 1))
	if err != nil {
		log.Fatal(err)
	}
	config := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 16, Vocab: 128, Norm: gpt.RMSNorm, NoBias: true}
	model, err := config.Chain()
	if err != nil {
		log.Fatal(err)
	}
	run, err := offload.New(mesh, model, optim.AdamW(2e-2), offload.Options{
		Optimizer: offload.Host, Update: offload.Host, Activations: offload.Host, Prefetch: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close()
	batches, err := gpt.Reference().Batches(config, 2)
	if err != nil {
		log.Fatal(err)
	}
	for run.Steps() < 11 {
		inputs, targets, err := batches.Step(run.Steps())
		if err != nil {
			log.Fatal(err)
		}
		loss, err := run.Step(context.Background(), inputs, targets)
		if err != nil {
			log.Fatal(err)
		}
		if done := run.Steps(); done%10 == 1 {
			fmt.Printf("step %2d: loss %.1f\n", done, loss)
		}
	}
	memory := run.Memory()
	fmt.Println("device:", memory.Device.Now.Total(), "bytes, all parameters:", memory.Device.Now[offload.Parameters])
	fmt.Println("host:  ", memory.Host.Now.Total(), "bytes, all the optimizer's:", memory.Host.Now[offload.Optimizer])
	// Output:
	// step  1: loss 4.9
	// step 11: loss 3.1
	// device: 42304 bytes, all parameters: 42304
	// host:   126912 bytes, all the optimizer's: 126912
}
