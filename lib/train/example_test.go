package train_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A small GPT learns the reference text in mixed precision: float32 parameters and Adam states, and bfloat16 in the
// forward and backward pass.
func Example() {
	backend := notebook.Must(xla.Open(xla.Devices(1), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis(train.Axis, 1)))
	bf16 := notebook.Must(precision.ParsePolicy("bf16"))
	model := gpt.Config{Layers: 1, Width: 32, Heads: 4, Seq: 32, Vocab: 256}
	run := notebook.Must(train.New(mesh, train.Recipe{Model: model, Optimizer: optim.AdamW(5e-3), Precision: bf16}))
	defer run.Close()
	batches := notebook.Must(gpt.Reference().Batches(model, 8))
	for run.Steps() < 41 {
		inputs, targets, err := batches.Step(run.Steps())
		notebook.Check(err)
		metrics := notebook.Must(run.Step(inputs, targets))
		if done := run.Steps(); done%20 == 1 {
			fmt.Printf("step %2d: loss %.1f\n", done, metrics.Loss)
		}
	}
	bytes := run.BytesPerDevice()
	fmt.Println(bytes["parameters"], "bytes of parameters,", bytes["optimizer"], "of optimizer states")
	// Output:
	// step  1: loss 5.6
	// step 21: loss 3.0
	// step 41: loss 2.5
	// 120704 bytes of parameters, 241408 of optimizer states
}
