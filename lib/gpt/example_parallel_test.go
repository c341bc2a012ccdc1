package gpt_test

import (
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	training "github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Four devices train a model together: pairs by tensor parallelism, and the two pairs by sequence parallelism, passing
// keys and values around a ring. Each device has half of the matrices, and a quarter of the tokens between layers.
func ExampleParallel() {
	backend, err := xla.Open(xla.Devices(4), xla.Plugin("cpu"))
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis(training.Axis, 1), xla.Axis("ring", 2), xla.Axis("tensor", 2))
	if err != nil {
		log.Fatal(err)
	}
	config := gpt.Config{Layers: 1, Width: 32, Heads: 4, Seq: 32, Vocab: 256}
	model := gpt.Parallel{
		Config:   config,
		Tensor:   tensor.Group{Axis: "tensor", Sequence: true},
		Sequence: sequence.Group{Ring: "ring", Placement: sequence.Zigzag},
	}
	run, err := ddp.NewSPMD(mesh, training.Recipe{Model: model, Optimizer: optim.AdamW(5e-3)})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close()
	batches, err := gpt.Reference().Batches(config, 8)
	if err != nil {
		log.Fatal(err)
	}
	for run.Steps() < 41 {
		inputs, targets, err := batches.Step(run.Steps())
		if err != nil {
			log.Fatal(err)
		}
		metrics, err := run.Step(inputs, targets)
		if err != nil {
			log.Fatal(err)
		}
		if done := run.Steps(); done%20 == 1 {
			fmt.Printf("step %2d: loss %.1f\n", done, metrics.Loss)
		}
	}
	fmt.Println(model.Params().Bytes(), "bytes of parameters,", run.BytesPerDevice()["parameters"],
		"of them on each device")
	report, err := run.Collectives()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a step:", report.Of(xla.AllGather).Count, "all-gathers,", report.Of(xla.ReduceScatter).Count,
		"reduce-scatters,", report.Of(xla.Permute).Count, "permutes")
	// Output:
	// step  1: loss 5.6
	// step 21: loss 3.0
	// step 41: loss 2.5
	// 120704 bytes of parameters, 62912 of them on each device
	// a step: 9 all-gathers, 6 reduce-scatters, 4 permutes
}
