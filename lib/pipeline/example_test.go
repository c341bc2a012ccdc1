package pipeline_test

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A model of four blocks on two ranks, each with a device of its own, and on one device.
func ExampleNew() {
	backend, err := xla.Open(xla.Devices(2))
	notebook.Check(err)
	defer backend.Close()
	recipe := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(0.05)}
	for ranks := 2; ranks >= 1; ranks-- {
		schedule, err := pipeline.ZBH1(ranks, 4)
		notebook.Check(err)
		run, err := pipeline.New(context.Background(), backend, recipe, pipeline.Options{Schedule: schedule})
		notebook.Check(err)
		var losses []float64
		for n := range 3 {
			inputs, targets := toy.Batch(n, 8)
			m, err := run.Step(context.Background(), inputs, targets)
			notebook.Check(err)
			losses = append(losses, m.Loss)
		}
		fmt.Printf("ranks %d: %.4f\n", ranks, losses)
		notebook.Check(run.Close())
	}
	// Output:
	// ranks 2: [0.3583 0.3337 0.2151]
	// ranks 1: [0.3583 0.3337 0.2151]
}
