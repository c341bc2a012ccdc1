// Pipeline draws two pipeline schedules, and trains a small GPT with the better one on two ranks, each with one device
// and half of the model.
package main

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	const ranks = 2
	var last *step.Plan
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindZBH1} {
		last = notebook.Must(pipeline.NewSchedule(kind, ranks, 4, 0))
		timeline := notebook.Must(last.Simulate(step.Equal()))
		fmt.Printf("%s is idle for %.0f%% of a step:\n%v\n", kind, 100*timeline.Bubble, timeline)
	}
	backend := notebook.Must(xla.Open(xla.Devices(ranks)))
	defer backend.Close()
	config := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 16, Vocab: 256}
	batches := notebook.Must(gpt.Reference().Batches(config, 8)) // 8 sequences: 2 for each of 4 micro-batches
	ctx, recipe := context.Background(), train.Recipe{Model: config, Optimizer: optim.AdamW(0.01)}
	run := notebook.Must(pipeline.New(ctx, backend, recipe, pipeline.Options{Schedule: last}))
	defer run.Close()
	for n := range 11 {
		inputs, targets, err := batches.Step(n)
		notebook.Check(err)
		if metrics := notebook.Must(run.Step(ctx, inputs, targets)); n%10 == 0 {
			fmt.Printf("step %2d: loss %.1f\n", n+1, metrics.Loss)
		}
	}
}
