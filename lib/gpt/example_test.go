package gpt_test

import (
	"fmt"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	training "github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The parameters of one block, by name.
func ExampleConfig_Params() {
	config := gpt.ReferenceConfig()
	tree := config.Params()
	block := must.Value(tree.Under(gpt.BlockName(0)))
	for _, spec := range block {
		fmt.Println(spec)
	}
	fmt.Println(tree.Size(), "parameters,", tree.Bytes(), "bytes")
	// Output:
	// h0.ln1.g (Float32)[256]
	// h0.ln1.b (Float32)[256]
	// h0.qkv.w (Float32)[256, 768]
	// h0.qkv.b (Float32)[768]
	// h0.o.w (Float32)[256, 256]
	// h0.o.b (Float32)[256]
	// h0.ln2.g (Float32)[256]
	// h0.ln2.b (Float32)[256]
	// h0.up.w (Float32)[256, 1024]
	// h0.up.b (Float32)[1024]
	// h0.down.w (Float32)[1024, 256]
	// h0.down.b (Float32)[256]
	// 3356160 parameters, 13424640 bytes
}

// Four devices train a model together: pairs by tensor parallelism, and the two pairs by sequence parallelism, passing
// keys and values around a ring. Each device has half of the matrices, and a quarter of the tokens between layers.
func ExampleParallel() {
	backend := must.Value(xla.Open(xla.Devices(4), xla.Plugin("cpu")))
	defer backend.Close()
	mesh := must.Value(backend.Mesh(xla.Axis(training.Axis, 1), xla.Axis("ring", 2), xla.Axis("tensor", 2)))
	config := gpt.Config{Layers: 1, Width: 32, Heads: 4, Seq: 32, Vocab: 256}
	model := gpt.Parallel{
		Config:   config,
		Tensor:   tensor.Group{Axis: "tensor", Sequence: true},
		Sequence: sequence.Group{Ring: "ring", Placement: sequence.Zigzag},
	}
	run := must.Value(ddp.NewSPMD(mesh, training.Recipe{Model: model, Optimizer: optim.AdamW(5e-3)}))
	defer run.Close()
	batches := must.Value(gpt.Reference().Batches(config, 8))
	for run.Steps() < 41 {
		inputs, targets, err := batches.Step(run.Steps())
		notebook.Check(err)
		metrics := must.Value(run.Step(inputs, targets))
		if done := run.Steps(); done%20 == 1 {
			fmt.Printf("step %2d: loss %.1f\n", done, metrics.Loss)
		}
	}
	fmt.Println(model.Params().Bytes(), "bytes of parameters,", run.BytesPerDevice()["parameters"],
		"of them on each device")
	report := must.Value(run.Collectives())
	fmt.Println("a step:", report.Of(xla.AllGather).Count, "all-gathers,", report.Of(xla.ReduceScatter).Count,
		"reduce-scatters,", report.Of(xla.Permute).Count, "permutes")
	// Output:
	// step  1: loss 5.6
	// step 21: loss 3.0
	// step 41: loss 2.5
	// 120704 bytes of parameters, 62912 of them on each device
	// a step: 9 all-gathers, 6 reduce-scatters, 4 permutes
}
