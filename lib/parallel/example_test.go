package parallel_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A small GPT on eight devices: two pipeline stages, each on four devices: tensor parallelism over two, and data
// parallelism over two that shard the optimizer states and the gradients.
func ExampleNew() {
	backend, err := xla.Open(xla.Devices(8), xla.Plugin("cpu"))
	notebook.Check(err)
	defer backend.Close()
	layout := parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 2}
	config := gpt.Config{Layers: 2, Width: 8, Heads: 2, Seq: 4, Vocab: 8, NoBias: true, Norm: gpt.RMSNorm}
	model := gpt.Parallel{Config: config, Tensor: layout.TensorGroup(), Sequence: layout.SequenceGroup("")}
	run, err := parallel.New(context.Background(), backend, train.Recipe{Model: model, Optimizer: optim.AdamW(0.05)},
		layout, parallel.Options{})
	notebook.Check(err)
	defer run.Close()
	const rows = 4
	inputs, targets := make([]int32, rows*config.Seq), make([]int32, rows*config.Seq)
	for i := range inputs {
		inputs[i], targets[i] = int32(i%config.Vocab), int32((i+1)%config.Vocab)
	}
	for range 4 {
		m, err := run.Step(context.Background(), tensors.FromFlatDataAndDimensions(inputs, rows, config.Seq),
			tensors.FromFlatDataAndDimensions(targets, rows, config.Seq))
		notebook.Check(err)
		fmt.Printf("%.3f\n", m.Loss)
	}
	// Output:
	// 2.085
	// 1.944
	// 1.676
	// 1.400
}

// The ranks of a plan may be goroutines, processes or hosts: whatever has a group. Here each of two pipelines has two
// ranks of one device.
func ExamplePlan_Join() {
	backend := notebook.Must(xla.Open(xla.Devices(4), xla.Plugin("cpu")))
	defer backend.Close()
	recipe := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(0.05)}
	plan := notebook.Must(parallel.NewPlan(recipe, parallel.Layout{Replicas: 2, Pipe: 2}))
	layout := plan.Layout()
	if err := group.Run(context.Background(), layout.Ranks(), func(ctx context.Context, g group.Group) error {
		rank, err := plan.Join(ctx, g, backend, g.Rank()*layout.PerRank(), parallel.Options{})
		if err != nil {
			return err
		}
		defer rank.Close()
		for range 3 {
			inputs, targets := toy.Batch(rank.Steps(), 8) // the same on all ranks, which take their rows
			m, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("%.3f\n", m.Loss)
			}
		}
		return nil
	}, group.Timeout(5*time.Minute)); err != nil { // the compiler may take long
		panic(err)
	}
	// Output:
	// 0.358
	// 0.334
	// 0.215
}
