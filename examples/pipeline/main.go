// Pipeline draws two schedules of pipeline parallelism, and trains a small GPT by the better one on two ranks, each a
// goroutine with a device of its own and half of the model.
package main

import (
	"context"
	"fmt"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	const ranks = 2
	var last schedule.Schedule
	for _, kind := range []schedule.Kind{schedule.Kind1F1B, schedule.KindZBH1} {
		last = notebook.Must(schedule.New(kind, ranks, 4, 0))
		timeline := notebook.Must(last.Simulate(schedule.Equal()))
		fmt.Printf("%s is idle for %.0f%% of a step:\n%v\n", kind, 100*timeline.Bubble, timeline)
	}
	backend := notebook.Must(xla.Open(xla.Devices(ranks)))
	defer backend.Close()
	config := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 16, Vocab: 256}
	batches := notebook.Must(gpt.Reference().Batches(config, 8)) // 8 sequences: 2 for each of 4 micro-batches
	engine := notebook.Must(pipeline.NewEngine(backend, train.Recipe{Model: config, Rule: optim.AdamW(0.01)}))
	defer engine.Close()
	pipe := notebook.Must(engine.Pipeline(pipeline.Options{Schedule: last}))
	notebook.Check(group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		rank, err := pipe.Join(ctx, g, g.Rank())
		if err != nil {
			return err // which is then an error of all ranks
		}
		defer rank.Close()
		for range 11 {
			inputs, targets, err := batches.Step(rank.Steps())
			if err != nil {
				return err
			}
			metrics, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := rank.Loss(ctx, metrics)
			if err != nil {
				return err
			}
			if n := rank.Steps(); g.Rank() == 0 && n%10 == 1 {
				fmt.Printf("step %2d: loss %.1f\n", n, loss)
			}
		}
		return nil
	}))
}
