package pipeline_test

import (
	"context"
	"fmt"
	"log"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A model of four blocks on two ranks, each with a device of its own, and on one device.
func ExampleNew() {
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	backend, err := xla.Open(xla.Devices(2))
	must(err)
	defer backend.Close()
	recipe := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(0.05)}
	for ranks := 2; ranks >= 1; ranks-- {
		schedule, err := pipeline.ZBH1(ranks, 4)
		must(err)
		run, err := pipeline.New(context.Background(), backend, recipe, pipeline.Options{Schedule: schedule})
		must(err)
		var losses []float64
		for n := range 3 {
			inputs, targets := toy.Batch(n, 8)
			m, err := run.Step(context.Background(), inputs, targets)
			must(err)
			losses = append(losses, m.Loss)
		}
		fmt.Printf("ranks %d: %.4f\n", ranks, losses)
		must(run.Close())
	}
	// Output:
	// ranks 2: [0.3583 0.3337 0.2151]
	// ranks 1: [0.3583 0.3337 0.2151]
}
